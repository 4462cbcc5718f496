package controller

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/lmittmann/tint"
)

// NewLogger returns a logger that writes text, coloured on a terminal, or one JSON object a line.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
	case "text":
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w) || os.Getenv("NO_COLOR") != ""})), nil
	default:
		return nil, fmt.Errorf("--log-format %q: want text or json", format)
	}
}

func isTerminal(w io.Writer) bool {
	if o, ok := w.(*outlet); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// ReadToken reads a secret from the first line of a file.
func ReadToken(path string) (string, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token, _, _ := strings.Cut(string(src), "\n")
	if token = strings.TrimSpace(token); token == "" {
		return "", errors.New("read token: " + path + " is empty")
	}
	return token, nil
}
