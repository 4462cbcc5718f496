package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/wire/crowd"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

// metricsClients is how many connections the address of --metrics-listen keeps.
const metricsClients = 16

// openHTTP opens the address of the HTTP interface, and that of the metrics where one is given.
func (g *ground) openHTTP(o *Options, security httpapi.Security, end *endings) (err error) {
	if g.http, err = g.listenHTTP(o, security); err != nil {
		return g.ifTaken(fmt.Errorf("--http: %w", err))
	}
	end.add("http listener", func(context.Context) error { return ignoreClosed(g.http.Close()) })
	if o.MetricsListen == "" {
		return nil
	}
	metrics, err := httpapi.Listen(o.MetricsListen)
	if err != nil {
		return g.ifTaken(fmt.Errorf("--metrics-listen: %w", err))
	}
	g.metrics = crowd.Listen(metrics, metricsClients)
	end.add("metrics listener", func(context.Context) error { return ignoreClosed(g.metrics.Close()) })
	return nil
}

// listenHTTP listens where it was asked to; with any free port, where an earlier controller of the run has
// listened: workers know that address.
func (g *ground) listenHTTP(o *Options, security httpapi.Security) (net.Listener, error) {
	var most int
	most, g.streams = g.needs.clients()
	if _, port, err := net.SplitHostPort(o.HTTP); err == nil && port == "0" && g.kept.HTTP != "" {
		if l, err := httpapi.Open(g.kept.HTTP, security, most); err == nil {
			return l, nil
		}
	}
	return httpapi.Open(o.HTTP, security, most)
}

// ifTaken marks an address that cannot be had now.
func (g *ground) ifTaken(err error) error {
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return g.notNow(err)
	}
	return err
}

// serveHTTP lets the HTTP interface answer, and metrics and probes at an address of their own where one is given.
func (c *Controller) serveHTTP() {
	server := roleapi.NewServer(c.api, c.log)
	go func() { _ = server.Serve(c.ground.http) }()
	c.endings.add("http", func(ctx context.Context) error {
		c.api.Close()
		return shutDown(ctx, server)
	})
	if l := c.ground.metrics; l != nil {
		harmless := roleapi.NewServer(c.api.Harmless(l.Addr().String()), c.log)
		go func() { _ = harmless.Serve(l) }()
		c.endings.add("metrics", func(ctx context.Context) error { return shutDown(ctx, harmless) })
		c.log.Info("metrics and probes are open to everybody who reaches their address", "metrics", "http://"+l.Addr().String())
	}
}

// shutDown ends a server: in order, or at once where a client holds it up.
func shutDown(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// url is where the HTTP interface is.
func (c *Controller) url() string {
	scheme := "http"
	if c.opts.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + c.ground.http.Addr().String()
}

// workerURL is what workers have in VIGIL_CONTROLLER_URL. It is for their environment only.
func (c *Controller) workerURL() string { return c.url() + "/life/" + c.workerSecret() }

// workerSecret is the secret in it, which outlives this controller as the run's secret does.
func (c *Controller) workerSecret() string {
	return roleapi.Secret([]byte(c.ground.secret), "VIGIL_CONTROLLER_URL")
}
