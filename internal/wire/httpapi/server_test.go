package httpapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

func TestAnAddressThatOthersReachNeedsTLSAndATokenOrAnInsecureSaidOutLoud(t *testing.T) {
	withTLS := httpapi.Security{CertFile: "c", KeyFile: "k"}
	both := withTLS
	both.Token = "sesame"
	for _, c := range []struct {
		addr string
		s    httpapi.Security
		want string // part of the refusal; empty: allowed
	}{
		{"127.0.0.1:8000", httpapi.Security{}, ""},
		{"[::1]:8000", httpapi.Security{}, ""},
		{"localhost:8000", httpapi.Security{}, ""},
		{"127.9.9.9:0", httpapi.Security{}, ""},
		{"0.0.0.0:8000", httpapi.Security{}, "neither TLS nor a token"},
		{":8000", httpapi.Security{}, "neither TLS nor a token"},
		{"[::]:8000", httpapi.Security{}, "neither TLS nor a token"},
		{"192.168.1.4:8000", httpapi.Security{}, "neither TLS nor a token"},
		{"trainer.example:8000", httpapi.Security{}, "neither TLS nor a token"},
		{"0.0.0.0:8000", httpapi.Security{Token: "sesame"}, "no TLS"},
		{"0.0.0.0:8000", withTLS, "no token"},
		{"0.0.0.0:8000", both, ""},
		{"0.0.0.0:8000", httpapi.Security{Insecure: true}, ""},
		{"127.0.0.1:8000", httpapi.Security{CertFile: "c"}, "go together"},
		{"8000", httpapi.Security{Insecure: true}, "want HOST:PORT"},
	} {
		err := httpapi.CheckBind(c.addr, c.s)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s with %+v: %v, want %q", c.addr, c.s, err, c.want)
		}
	}
}

// shows: R41
func TestAPortInUseNamesWhoHoldsIt(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("skip %s: %v", addr, err)
			continue
		}
		defer l.Close()
		_, err = httpapi.Listen(l.Addr().String())
		comm, readErr := os.ReadFile("/proc/self/comm")
		if readErr != nil {
			t.Fatal(readErr)
		}
		want := fmt.Sprintf("listen on %s: address already in use by %s (pid %d)", l.Addr(), strings.TrimSpace(string(comm)), os.Getpid())
		if err == nil || err.Error() != want || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second listener: %v\nwant %s", err, want)
		}
	}
}

func TestAnAddressThatIsNotOursIsAnErrorThatSaysSo(t *testing.T) {
	if _, err := httpapi.Listen("192.0.2.1:8000"); err == nil || !strings.Contains(err.Error(), "listen on 192.0.2.1:8000") {
		t.Errorf("listen on a foreign address: %v", err)
	}
	if _, err := httpapi.Open("0.0.0.0:0", httpapi.Security{}, 100); err == nil {
		t.Error("an open address without protection was listened on")
	}
}

// certificate writes a self-signed certificate for 127.0.0.1 and returns the files and the pool.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool.AppendCertsFromPEM(certPEM)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, content := range map[string][]byte{cert: certPEM, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

func TestWithACertificateTheInterfaceSpeaksTLSAndHTTP2(t *testing.T) {
	cert, key, pool := certificate(t)
	l, err := httpapi.Open("127.0.0.1:0", httpapi.Security{CertFile: cert, KeyFile: key, Token: "sesame"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	srv := roleapi.NewServer(newAPI(newFake(), "sesame"), slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+l.Addr().String()+"/api/v1/job", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sesame")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("job over TLS = %d %s, want 200 by HTTP/2", resp.StatusCode, resp.Proto)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if _, err := httpapi.Open("127.0.0.1:0", httpapi.Security{CertFile: cert + ".not", KeyFile: key}, 100); err == nil {
		t.Error("a certificate that does not exist was taken")
	}
}
