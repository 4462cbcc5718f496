package httpapi

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"vigil/api"
	"vigil/internal/role"
	"vigil/internal/wire/roleapi"
)

var update = flag.Bool("update", false, "write api/openapi.yaml anew")

const contractFile = "../../../api/openapi.yaml"

// noRoles and noController are never asked: only what is routed matters here.
type noRoles struct{ roleapi.Roles }

func (noRoles) Known() []role.Name { return nil }

type noController struct{ Controller }

func (noController) Healthy() error                          { return nil }
func (noController) Ready() error                            { return nil }
func (noController) StopJob(context.Context) (string, error) { return "", nil }

func routed() *API {
	return New(Options{Controller: noController{}, Roles: noRoles{}, Metrics: http.NotFoundHandler(), Bound: "127.0.0.1:8000"})
}

func TestContractIsWhatIsDescribed(t *testing.T) {
	want, err := routed().doc.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(contractFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(api.OpenAPI, want) {
		t.Errorf("api/openapi.yaml is not what is described, write it anew by go generate ./internal/wire/httpapi (-have +want):\n%s",
			cmp.Diff(string(api.OpenAPI), string(want)))
	}
}

func TestContractDocumentsEveryRouteAndEveryDocumentedOperationIsRouted(t *testing.T) {
	if *update {
		t.Skip("the embedded contract is the one before -update")
	}
	var contract struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(api.OpenAPI, &contract); err != nil {
		t.Fatal(err)
	}
	var documented, served []string
	for path, operations := range contract.Paths {
		for method := range operations {
			documented = append(documented, http.CanonicalHeaderKey(method)+" "+path)
		}
	}
	err := chi.Walk(routed().router, func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		served = append(served, http.CanonicalHeaderKey(method)+" "+path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(documented)
	slices.Sort(served)
	if diff := cmp.Diff(documented, served); diff != "" {
		t.Errorf("documented (-) and routed (+) differ:\n%s", diff)
	}
	if len(served) < 20 {
		t.Errorf("only %d operations are routed", len(served))
	}
}
