package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// callDeadline of a unary call leaves room for all attempts of the retry policy (1 + 2 + 4 s and
	// its jitter).
	callDeadline = 15 * time.Second
	// maxMessage in bytes, both ways.
	maxMessage = 4 << 20
	// maxHeaders of one call in bytes, both ways: names and values, and 32 for each (RFC 9113, 6.5.2).
	maxHeaders = 64 << 10
	// maxSocketPath is what sun_path of sockaddr_un(7) holds, less the final NUL.
	maxSocketPath = 107
	maxTarget     = 512
)

// retryPolicy is the part of gRPC's retry policy (gRFC A6) that tests make shorter. Attempts are 4, the
// multiplier 2, and UNAVAILABLE alone is retried.
type retryPolicy struct{ initial, max time.Duration }

var (
	defaultRetry = retryPolicy{initial: time.Second, max: 5 * time.Second}
	// noRetry is for streams: a retried stream would begin with a replay of what is old by then.
	noRetry = retryPolicy{}
)

// serviceConfig returns the policy as a gRPC service config for every method.
func (p retryPolicy) serviceConfig() string {
	return fmt.Sprintf(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,`+
		`"initialBackoff":"%gs","maxBackoff":"%gs","backoffMultiplier":2.0,`+
		`"retryableStatusCodes":["UNAVAILABLE"]}}]}`, p.initial.Seconds(), p.max.Seconds())
}

// dial makes a channel to a target; it connects later, by itself. Targets beyond Unix sockets need
// options of the caller's, which bring their credentials.
func dial(target string, retry retryPolicy, beyond []grpc.DialOption) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithDisableServiceConfig(), // a target's own config must not replace the policy
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithIdleTimeout(0),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
	if retry == noRetry {
		options = append(options, grpc.WithDisableRetry())
	} else {
		options = append(options, grpc.WithDefaultServiceConfig(retry.serviceConfig()))
	}
	if socketPath(target) != "" {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		options = append(options, beyond...)
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

// socketPath returns the path of a Unix socket target, or "" if the target is none.
func socketPath(target string) string {
	path, found := strings.CutPrefix(target, "unix:")
	if !found {
		return ""
	}
	if rest, found := strings.CutPrefix(path, "//"); found {
		path = rest
	}
	if !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// checkTarget says why a target cannot be dialed; beyond tells whether others than Unix sockets can.
func checkTarget(target string, beyond bool) error {
	path := socketPath(target)
	switch {
	case target == "":
		return errors.New("no address")
	case len(target) > maxTarget:
		return fmt.Errorf("an address of %d bytes: at most %d", len(target), maxTarget)
	case strings.ContainsFunc(target, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("address %q: holds spaces or control characters", target)
	case strings.ContainsAny(path, "?#%"):
		return fmt.Errorf("address %q: a path in a target cannot hold ?, # or %%", target)
	case path != "" && len(path) > maxSocketPath:
		return fmt.Errorf("address %q: a socket path of %d bytes, the system's limit is %d", target, len(path), maxSocketPath)
	case path != "":
		return nil
	case strings.HasPrefix(target, "unix"):
		return fmt.Errorf("address %q: want unix:///PATH", target)
	case !beyond:
		return fmt.Errorf("address %q: want a Unix socket, unix:///PATH", target)
	default:
		return nil
	}
}

// refusal connects to a Unix socket and returns why nobody can be listening there, or "" if somebody
// may be: it answered, or the error proves nothing (a full queue, no permission).
func refusal(path string) string {
	if path == "" {
		return ""
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		c.Close()
		return ""
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "its socket " + path + " refuses"
	case errors.Is(err, syscall.ENOENT):
		return "its socket " + path + " does not exist"
	}
	return ""
}

// whileListening returns a context for one call to a target: it ends at the call deadline, and soon
// after nobody listens on the target's socket any more, since retrying is of no use then.
func whileListening(ctx context.Context, target string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	path := socketPath(target)
	if path == "" {
		return ctx, cancel
	}
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if refusal(path) != "" {
					cancel()
				}
			}
		}
	}()
	return ctx, cancel
}
