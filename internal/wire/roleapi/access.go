package roleapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"vigil/internal/wire/caller"
)

// Access says whom an HTTP interface serves. Who may not ask gets a problem document; web pages of
// other origins are refused before (see Guard).
type Access struct {
	Bound string // the address listened on, HOST:PORT
	// Token is asked for as bearer token. Without one an interface on a loopback address serves our own
	// user and root, by what the kernel says of each connection, and one on any other address serves all.
	Token string
	Open  []string // paths that are served to everybody
	// Life is asked about a request below /life/SECRET/, by the secret and the rest of its path, without
	// a slash before it. It says which path is meant, and what the secret is worth. Nil: there is no such
	// address. It must compare with SameSecret.
	Life func(method, secret, rest string) (path string, worth Worth)
}

// Worth is what a secret in a path is worth.
type Worth int

// The worths of a secret.
const (
	WrongSecret Worth = iota // the request is refused
	OnlyAddress              // the secret is right and does not open that path: its caller is asked about
	OpensPath                // the request is served, whoever has sent it
)

// lifePrefix begins the path of an address with a secret. No role can have that name.
const lifePrefix = "/life/"

// Handler returns next behind the checks.
func (a Access) Handler(next http.Handler) http.Handler {
	return Guard(a.Bound)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		worth := OnlyAddress
		if rest, below := strings.CutPrefix(r.URL.Path, lifePrefix); below && a.Life != nil {
			secret, rest, _ := strings.Cut(rest, "/")
			path := ""
			// What is escaped could be routed as something else than what was looked at.
			if r.URL.RawPath == "" {
				path, worth = a.Life(r.Method, secret, rest)
			} else {
				worth = WrongSecret
			}
			if worth == WrongSecret {
				WriteProblem(w, NewProblem(http.StatusForbidden, "no worker has this address: the words of a worker go to VIGIL_SERVICE_URL, its questions to VIGIL_CONTROLLER_URL, both with a secret of its own in the path"))
				return
			}
			r = withPath(r, path)
		}
		if worth != OpensPath {
			if p := a.refusal(r); p != nil {
				if p.Status == http.StatusUnauthorized {
					w.Header().Set("WWW-Authenticate", `Bearer realm="vigil"`)
				}
				WriteProblem(w, p)
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
}

// refusal says why a request is not served; nil if it is.
func (a Access) refusal(r *http.Request) *Problem {
	switch {
	case slices.Contains(a.Open, r.URL.Path):
		return nil
	case a.Token != "":
		if !hasToken(r, a.Token) {
			return NewProblem(http.StatusUnauthorized, "want the controller's token: Authorization: Bearer TOKEN")
		}
		return nil
	case !IsLoopback(hostOf(a.Bound)):
		return nil // --insecure
	}
	uid, err := caller.From(r.Context()).UID()
	switch {
	case err != nil:
		return NewProblem(http.StatusForbidden, fmt.Sprintf("cannot find out which user has asked (%v): start the controller with --token-file FILE and ask it with the token", err))
	case !caller.IsOurs(uid):
		return NewProblem(http.StatusForbidden, fmt.Sprintf("served to the job's user (%d) and root only, and the connection is of user %d; "+
			"behind a tunnel or a proxy, such as ssh -L or docker, that is the user of the tunnel's end: ask as the job's user, or start the controller with --token-file FILE and ask it with the token",
			os.Geteuid(), uid))
	}
	return nil
}

// hasToken says whether the request carries the token.
func hasToken(r *http.Request, token string) bool {
	scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return SameSecret(strings.TrimSpace(sent), token) && strings.EqualFold(scheme, "Bearer")
}

// SameSecret says whether somebody has sent the secret. It takes the same time whatever was sent, its
// length included. An empty secret is nobody's.
func SameSecret(sent, secret string) bool {
	have, want := sha256.Sum256([]byte(sent)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(have[:], want[:]) == 1 && secret != ""
}

// Secret returns the secret of what is named, made from a key: 32 hex digits that say nothing of the key
// or of other names.
func Secret(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(name))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// withPath returns r with another path.
func withPath(r *http.Request, path string) *http.Request {
	other, url := *r, *r.URL
	url.Path = path
	other.URL, other.RequestURI = &url, url.RequestURI()
	return &other
}
