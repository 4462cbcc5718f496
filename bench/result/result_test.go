package result

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func hundred() Samples {
	var s Samples
	for i := range 100 {
		s = append(s, time.Duration(100-i)*time.Millisecond)
	}
	return s
}

func TestAQuantileIsTheNearestRank(t *testing.T) {
	s := hundred()
	for q, want := range map[float64]float64{0.001: 1, 0.5: 50, 0.9: 90, 0.99: 99, 1: 100} {
		if got := s.At(q); got != want {
			t.Errorf("quantile %v of 1 ms to 100 ms = %v ms, want %v", q, got, want)
		}
	}
	if got := (Samples{7 * time.Millisecond}).At(0.99); got != 7 {
		t.Errorf("p99 of one sample = %v, want the sample", got)
	}
	if got := (Samples{}).At(0.5); got != 0 {
		t.Errorf("median of nothing = %v, want 0", got)
	}
}

func TestARowWithoutATargetHasNullForTargetAndPass(t *testing.T) {
	var r Report
	r.Measured("death to decision", hundred(), nil, Below(10))
	r.Add(Row{Name: "sweep", Unit: "ms", Value: 0.5, N: 3}, AtMost(1))
	folder := filepath.Join(t.TempDir(), "out")
	if err := r.Write(folder, "loop"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "loop.json"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(string(text)), "")
	want := `[{"name":"deathtodecisionmedian","unit":"ms","value":50,"target":null,"pass":null,"n":100},` +
		`{"name":"deathtodecisionp99","unit":"ms","value":99,"target":10,"pass":false,"n":100},` +
		`{"name":"sweep","unit":"ms","value":0.5,"target":1,"pass":true,"n":3}]`
	if got != want {
		t.Errorf("written\n%s\nwant\n%s", got, want)
	}
}

func TestTheTableShowsTheDistributionAndWhatWasMissed(t *testing.T) {
	var r Report
	r.Measured("death to decision", hundred(), nil, Below(10))
	r.Note("torchrun is not installed")
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"p90", "90.00", "100.00", "MISSED", "torchrun is not installed"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	if missed := r.Missed(); len(missed) != 1 || missed[0].Name != "death to decision p99" {
		t.Errorf("missed: %v", missed)
	}
}
