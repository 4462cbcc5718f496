package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"vigil/internal/wire/caller"
)

// CheckAnswers asks for every documented GET and holds the JSON that comes against its schema. It is
// here for the tests of the other package, which have a controller that answers.
func CheckAnswers(t *testing.T, a *API, fill *strings.Replacer) {
	t.Helper()
	checked := 0
	for path, item := range a.doc.Paths {
		if item.Get == nil || item.Get.Responses["200"].Content["application/json"] == nil {
			continue
		}
		query := url.Values{}
		for _, in := range item.Get.Parameters {
			if in.In == "query" && in.Required {
				query.Set(in.Name, fmt.Sprint(in.Schema.Examples[0]))
			}
		}
		r := httptest.NewRequest(http.MethodGet, fill.Replace(path)+"?"+query.Encode(), nil)
		r.Host = "localhost"
		r = r.WithContext(caller.With(r.Context(), caller.Known(os.Geteuid())))
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("GET %s = %d %s %s", path, w.Code, w.Header().Get("Content-Type"), w.Body)
			continue
		}
		var have any
		if err := json.Unmarshal(w.Body.Bytes(), &have); err != nil {
			t.Errorf("GET %s: %v", path, err)
			continue
		}
		var result huma.ValidateResult
		schema := item.Get.Responses["200"].Content["application/json"].Schema
		huma.Validate(a.doc.Components.Schemas, schema, huma.NewPathBuffer([]byte{}, 0), huma.ModeReadFromServer, have, &result)
		for _, err := range result.Errors {
			t.Errorf("GET %s does not answer what is documented: %v\n%s", path, err, w.Body)
		}
		checked++
	}
	if checked < 12 {
		t.Errorf("only %d answers were held against their schema", checked)
	}
}
