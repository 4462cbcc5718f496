package job

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compare holds a file against what is made from the descriptions of the keys.
func compare(t *testing.T, path string, have, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("%s is not what the keys say; go test ./internal/job -update writes it (-want +have):\n%s", path, diff)
	}
}

func TestTheSchemaForEditorsHasExactlyTheKeysOfTheParser(t *testing.T) {
	const path = "../../api/job.schema.json"
	have, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	compare(t, path, have, Schema())
}

func TestTheReferenceHasExactlyTheKeysOfTheParser(t *testing.T) {
	const path, begin, end = "../../docs/reference/job-file.md", "<!-- keys: made by go test ./internal/job -update -->\n", "<!-- end of keys -->\n"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(have, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		t.Fatalf("%s has no table between %q and %q", path, begin, end)
	}
	compare(t, path, have, slices.Concat(before, []byte(begin+Reference()+end), after))
}

func TestEveryExampleOfTheReferenceIsAJobFile(t *testing.T) {
	for _, path := range []string{"../../docs/reference/job-file.md", "../../docs/guides/independent-workers.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(text), "```yaml\n")[1:]
		if len(blocks) == 0 {
			t.Fatalf("%s has no example", path)
		}
		for i, block := range blocks {
			example, _, _ := strings.Cut(block, "```")
			if _, err := Parse(fmt.Sprintf("%s example %d", path, i+1), []byte(example), "/jobs"); err != nil {
				t.Error(err)
			}
		}
	}
}

// A field that no key sets would never be anything but its default.
func TestEveryFieldOfAJobIsSetByAKeyAndEveryKeySetsAField(t *testing.T) {
	full, err := Load("testdata/good/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	silent := mustParse(t, "name: x\nroles: {actor: {command: [x]}, data: {command: [x]}, critic: {command: [x]}, probe: {command: [x]}, notify: {command: [x]}}")
	silent.Name, silent.Roles[0].Name = "", ""
	changed := map[string]bool{}
	for _, name := range full.Names() {
		one, _ := full.Role(name)
		base := silent.Roles[1]
		base.Name, base.Command, base.Ready = "", nil, nil
		differences("Role", reflect.ValueOf(base), reflect.ValueOf(*one), changed)
	}
	differences("Job", reflect.ValueOf(Job{}), reflect.ValueOf(*full), changed)
	for _, field := range append(leaves("Role", reflect.TypeFor[Role]()), leaves("Job", reflect.TypeFor[Job]())...) {
		if !changed[field] {
			t.Errorf("no key of testdata/good/full.yaml sets the field %s", field)
		}
	}
	var used []string
	src := full.src.places
	for path := range src {
		used = append(used, general(path))
	}
	for _, path := range paths() {
		if !slices.Contains(used, path) {
			t.Errorf("testdata/good/full.yaml does not have the key %s", path)
		}
	}
}

// general makes of roles.actor.env.URL the path roles.NAME.env.NAME that the description has.
func general(path string) string {
	part := strings.Split(regexp.MustCompile(`\[\d+\]`).ReplaceAllString(path, ""), ".")
	for i := 1; i < len(part); i++ {
		switch {
		case part[i-1] == "controller":
			part[i] = "FLAG"
		case i == 1 && part[0] == "roles", part[i-1] == "env", part[i-1] == "ports", part[i-1] == "phases":
			part[i] = "NAME"
		}
	}
	return strings.Join(part, ".")
}

// leaves names the fields of a type, those of its structs in their place.
func leaves(path string, of reflect.Type) []string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return []string{path}
	}
	var all []string
	for i := range of.NumField() {
		if f := of.Field(i); f.IsExported() {
			all = append(all, leaves(path+"."+f.Name, f.Type)...)
		}
	}
	return all
}

// differences marks the fields in which two values differ.
func differences(path string, a, b reflect.Value, changed map[string]bool) {
	if b.Kind() == reflect.Pointer {
		if b.IsNil() {
			return
		}
		if a.IsNil() {
			a = reflect.New(b.Type().Elem())
		}
		a, b = a.Elem(), b.Elem()
	}
	if b.Kind() != reflect.Struct {
		if !cmp.Equal(a.Interface(), b.Interface(), sameJob) {
			changed[path] = true
		}
		return
	}
	for i := range b.NumField() {
		if f := b.Type().Field(i); f.IsExported() {
			differences(path+"."+f.Name, a.Field(i), b.Field(i), changed)
		}
	}
}

// paths returns the path of every key, such as "roles.NAME.stop.grace", sorted.
func paths() []string {
	var paths []string
	var walk func(prefix string, keys []Key)
	walk = func(prefix string, keys []Key) {
		for _, k := range keys {
			paths = append(paths, prefix+k.Name)
			walk(prefix+k.Name+".", k.Keys)
		}
	}
	walk("", Keys())
	slices.Sort(paths)
	return paths
}
