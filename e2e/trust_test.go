package e2e

import (
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/rogpeppe/go-internal/testscript"

	"vigil/api"
)

// endpoints returns every operation of the controller, as the contract has them, which a test holds against what is
// routed: "POST /critic/stop_service".
func endpoints(ts *testscript.TestScript, role string) []string {
	var contract struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	ts.Check(yaml.Unmarshal(api.OpenAPI, &contract))
	fill := strings.NewReplacer("{role}", role, "{id}", "1", "{rank}", "0")
	var all []string
	for path, operations := range contract.Paths {
		for method := range operations {
			all = append(all, strings.ToUpper(method)+" "+fill.Replace(path))
		}
	}
	slices.Sort(all)
	if len(all) < 20 {
		ts.Fatalf("the contract has %d operations only", len(all))
	}
	return all
}

// trespass lets another user of the machine try everything.
func trespass(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	uid, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i, arg := range args {
		if file, ok := strings.CutPrefix(arg, "@"); ok {
			args[i] = strings.TrimSpace(ts.ReadFile(file))
		}
	}
	type attempt struct {
		operation string
		want      int
	}
	var attempts []attempt
	var lines strings.Builder
	add := func(base, operation string, want int) {
		method, path, _ := strings.Cut(operation, " ")
		attempts = append(attempts, attempt{method + " " + base + path, want})
		lines.WriteString(method + " " + base + path + "\n")
	}
	all := endpoints(ts, "critic")
	for _, op := range all {
		status := http.StatusForbidden
		if slices.Contains([]string{"GET /metrics", "GET /healthz", "GET /readyz"}, op) {
			status = http.StatusOK
		}
		add(args[1], op, status)
		add(args[1], strings.Replace(op, " /", " /life/00000000000000000000000000000000/", 1), http.StatusForbidden)
	}
	// A service has the endpoints of its role, which a test of the package service holds against what is routed, and notify.
	for _, base := range args[2:] {
		for _, op := range append(all, "POST /critic/notify") {
			add(base, op, http.StatusForbidden)
		}
	}
	for _, base := range args[1:] {
		for _, op := range []string{"GET /", "GET /nothing", "POST /life", "PUT /critic/set_step", "OPTIONS /api/v1/job"} {
			add(base, op, http.StatusForbidden)
		}
	}
	program, err := exec.LookPath("worker")
	ts.Check(err)
	cmd := exec.Command(program, "try", "exit=0")
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = "/", []string{}, strings.NewReader(lines.String()), ts.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.Output()
	ts.Check(err)
	got := strings.Fields(string(out))
	if len(got) != len(attempts) {
		ts.Fatalf("%d of %d requests were answered", len(got), len(attempts))
	}
	for i, a := range attempts {
		if got[i] != strconv.Itoa(a.want) {
			ts.Fatalf("user %d: %s = %s, want %d", uid, a.operation, got[i], a.want)
		}
	}
}

var secretURL = regexp.MustCompile(`(?m)^VIGIL_(?:SERVICE|CONTROLLER)_URL=.*/life/([0-9a-f]{32})\b`)

// untold looks for secrets where they must not be.
func untold(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	found := secretURL.FindAllStringSubmatch(ts.ReadFile(args[0]), -1)
	if len(found) != 2 {
		ts.Fatalf("there are %d secrets in %s, want 2", len(found), args[0])
	}
	look := func(where, text string) {
		for _, secret := range found {
			if strings.Contains(text, secret[1]) {
				ts.Fatalf("%s has the secret %s", where, secret[1])
			}
		}
	}
	for name, r := range s.runs {
		look("the log of "+name, read(r.log))
	}
	for _, op := range endpoints(ts, "critic") {
		path, reads := strings.CutPrefix(op, "GET ")
		if !reads || strings.HasSuffix(path, "/mark_unhealthy_for_testing") {
			continue
		}
		_, body, err := s.ask(http.MethodGet, path, "")
		ts.Check(err)
		look("the answer to "+op, body)
	}
	for _, p := range marked(s.uid) {
		look("a command line", read("/proc/"+strconv.Itoa(p.pid)+"/cmdline"))
	}
	looked := 0
	ts.Check(filepath.WalkDir(args[1], func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		looked++
		text, err := os.ReadFile(path)
		look(path, string(text))
		return err
	}))
	if looked < 5 {
		ts.Fatalf("the state has %d files only", looked)
	}
}
