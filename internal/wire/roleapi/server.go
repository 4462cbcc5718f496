package roleapi

import (
	"log/slog"
	"net/http"
	"time"

	"vigil/internal/wire/caller"
	"vigil/internal/wire/crowd"
)

// NewServer returns the server of an HTTP interface of vigil's. It knows the caller of each connection
// (see caller) and bounds what one can hold: headers within 5 s and 32 KiB, the whole request within
// 30 s, an idle connection 2 min, an answer 60 s. Endpoints that work for longer or stream set their own
// limit on writing. A handler with a method Close is closed when Shutdown begins. What goes wrong with
// single connections is logged at debug level.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:           handler,
		ConnContext:       caller.ConnContext,
		ConnState:         crowd.State,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	srv.DisableGeneralOptionsHandler = true // it would answer OPTIONS * to everybody
	if c, ok := handler.(interface{ Close() }); ok {
		srv.RegisterOnShutdown(c.Close)
	}
	return srv
}
