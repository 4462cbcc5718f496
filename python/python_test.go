// Package python has the library for workers that are Python programs. It is Python; these tests run its
// own, and install it.
package python

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// run runs a program to its end and returns what it said.
func run(t *testing.T, dir string, command ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	return said.String(), err
}

// must is run for a program that has to end well.
func must(t *testing.T, dir string, command ...string) string {
	t.Helper()
	said, err := run(t, dir, command...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, said)
	}
	return said
}

// dependOn reads the Python files of a folder, so that go test knows a result of before they changed to be
// out of date.
func dependOn(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".py" {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pythonWith returns a Python that has these modules, or skips the test.
func pythonWith(t *testing.T, modules ...string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(python)
		if err != nil {
			continue
		}
		check := "import sys; assert sys.version_info >= (3, 9)"
		for _, m := range modules {
			check += "; import " + m
		}
		if _, err := run(t, ".", path, "-c", check); err == nil {
			return path
		}
	}
	t.Skipf("SKIPPED: no Python 3.9 or newer with %s", strings.Join(append(modules, "its standard library"), ", "))
	return ""
}

func TestTheLibrarySaysWhatItPromises(t *testing.T) {
	dependOn(t, ".")
	dependOn(t, "../internal/service/inject")
	said := must(t, ".", pythonWith(t), "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-v")
	for _, line := range regexp.MustCompile(`(?m)^.*SKIPPED.*$`).FindAllString(said, -1) {
		t.Log(line)
	}
	if ran := regexp.MustCompile(`Ran (\d+) tests`).FindStringSubmatch(said); ran == nil || len(ran[1]) < 2 {
		t.Errorf("hardly a test was found:\n%s", said)
	}
}

// venv makes a virtual environment for a Python and returns the commands that install into it.
func venv(t *testing.T, python string, options ...string) (bin string, pip []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "venv")
	must(t, ".", append([]string{python, "-m", "venv", "--without-pip", dir}, options...)...)
	return filepath.Join(dir, "bin"), []string{python, "-m", "pip", "--python", filepath.Join(dir, "bin", "python"), "install", "--quiet", "--no-index", "--no-deps"}
}

func TestTheWheelBringsTheProgramAndTheLibraryToAMachineWithoutGo(t *testing.T) {
	dependOn(t, ".")
	python := pythonWith(t, "venv", "pip")
	dir := t.TempDir()
	program := filepath.Join(dir, "controller")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./cmd/controller")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, said)
	}
	wheel := strings.TrimSpace(must(t, ".", python, "build_wheel.py", "--program", program, "--out", dir))
	first, err := os.ReadFile(wheel)
	if err != nil {
		t.Fatal(err)
	}
	must(t, ".", python, "build_wheel.py", "--program", program, "--out", dir)
	if again, err := os.ReadFile(wheel); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the same input gives another wheel (%v)", err)
	}
	bin, pip := venv(t, python)
	must(t, ".", append(pip, wheel)...)
	for _, name := range []string{"vigil", "controller"} {
		if said := must(t, "/", filepath.Join(bin, name), "version"); !strings.HasPrefix(said, "vigil ") {
			t.Errorf("%s version says %q", name, said)
		}
	}
	if said := must(t, "/", filepath.Join(bin, "python"), "-c", "import vigil; print(vigil.__version__, vigil.active())"); !strings.HasPrefix(said, "0.") {
		t.Errorf("the package says %q", said)
	}
	// As pipx and uv do it: the command is a link in another folder.
	link := filepath.Join(t.TempDir(), "controller")
	if err := os.Symlink(filepath.Join(bin, "controller"), link); err != nil {
		t.Fatal(err)
	}
	if said := must(t, "/", link, "version"); !strings.HasPrefix(said, "vigil ") {
		t.Errorf("by a link: %q", said)
	}
}

func TestTheLibraryIsInstalledFromItsSource(t *testing.T) {
	python := pythonWith(t, "venv", "pip", "setuptools", "wheel")
	source := t.TempDir() // the build leaves files beside the source
	if err := os.CopyFS(source, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	bin, pip := venv(t, python, "--system-site-packages")
	must(t, ".", append(pip, "--no-build-isolation", source)...)
	said := must(t, "/", filepath.Join(bin, "python"), "-c",
		"import vigil, vigil.integrations.pytorch, vigil.compat.relax, os; print(os.path.exists(os.path.join(os.path.dirname(vigil.__file__), 'py.typed')), vigil.__file__)")
	if !strings.HasPrefix(said, "True ") || !strings.Contains(said, filepath.Dir(bin)) {
		t.Errorf("installed: %q", said)
	}
}
