package nearest

import "testing"

func TestTheNearestWordIsFoundAndAFarOneIsNot(t *testing.T) {
	known := []string{"workers", "workdir", "command", "env", "env_file", "ports"}
	for in, want := range map[string]string{
		"wrokers":  "workers", // swapped
		"worker":   "workers", // one short
		"comand":   "command", // one too many
		"work_dir": "workdir",
		"evn":      "env",
		"port":     "ports",
		"xy":       "",
		"replicas": "",
		"":         "",
	} {
		if got := Word(in, known); got != want {
			t.Errorf("Word(%q) = %q, want %q", in, got, want)
		}
	}
}
