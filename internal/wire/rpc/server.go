package rpc

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"vigil/api"
)

// newServer makes a server with what both sides share: bounds, the health service, and no call that can
// take the process down.
func newServer(log *slog.Logger, more []grpc.ServerOption) *grpc.Server {
	options := append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
			defer recovered(log, info.FullMethod, &err)
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer recovered(log, info.FullMethod, &err)
			return next(srv, stream)
		}),
	}, more...)
	s := grpc.NewServer(options...)
	healthy := health.NewServer()
	healthy.SetServingStatus(api.HeartBeat_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, healthy)
	return s
}

// reflect lets tools such as grpcurl ask the server what it offers; the last to be registered.
func reflect(s *grpc.Server) { reflection.Register(s) }

// recovered turns a panic into a status, so that no caller can end the process.
func recovered(log *slog.Logger, method string, err *error) {
	if r := recover(); r != nil {
		log.Error("call panicked", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "%s: internal error", method)
	}
}

// authorize says why a caller is refused, as a status; nil if it is not. Without a Sender it is a seed
// client, welcome on Unix sockets only.
func authorize(ctx context.Context, sender *api.Sender, job, token string) error {
	if sender == nil {
		if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() == "unix" {
			return nil
		}
		return status.Error(codes.Unauthenticated, "a caller without a sender is accepted on Unix sockets only")
	}
	if token != "" && subtle.ConstantTimeCompare([]byte(sender.Token), []byte(token)) != 1 {
		return status.Error(codes.Unauthenticated, "the token is not this job's")
	}
	if sender.JobUid != job {
		return status.Errorf(codes.PermissionDenied, "this is job %q, the sender's is %q", job, sender.JobUid)
	}
	return nil
}
