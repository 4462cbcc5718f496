package service

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vigil/api"
	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
)

// setting is everything that one worker's environment and command are made from.
type setting struct {
	Base      []string          // the service's own environment, KEY=VALUE
	FromFile  map[string]string // what the role's env_file says
	JobName   string
	Life      role.Life
	Role      *job.Role
	Run       *api.Run
	Worker    *api.Worker
	LocalRank int // index among the workers of this service

	User         *job.User // whom it runs as; nil: us
	NotifySocket string
	Inbox        string
	ServiceURL   string
	PeersFile    string
	ErrorFile    string
	TraceDir     string // for NCCL's flight recorder; empty: none
	HookFolder   string // of the optimizer hook; empty without one
	Devices      string // the variable that shows a worker its devices
}

// torchNames are the variables that torchrun sets for its workers
// (torch/distributed/elastic/agent/server/local_elastic_agent.py and multiprocessing/api.py).
var torchNames = []string{
	"RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK",
	"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
	"MASTER_ADDR", "MASTER_PORT",
	"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
	"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
}

// supervisorNames are variables by which the service itself may have been started, and which would
// mislead a worker: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3).
var supervisorNames = []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}

// compose returns the command and the environment of one worker, the latter sorted. What is set by
// whom, weakest first: defaults, the service's environment, env_file, the job file's env, and what
// the worker must be able to rely on. Of several equal names the strongest is left.
func compose(s setting) (command, environ []string, err error) {
	env := inherited(s.Base)
	if s.User != nil {
		env["HOME"], env["USER"], env["LOGNAME"] = s.User.Home, s.User.Name, s.User.Name
	}
	maps.Copy(env, s.FromFile)
	for key, value := range s.Role.Env {
		if env[key], err = job.ExpandPorts(value, s.Worker.GetPorts()); err != nil {
			return nil, nil, fmt.Errorf("env %s of %s: %w", key, s.Life.Role, err)
		}
	}
	for _, arg := range s.Role.Argv() {
		arg, err := job.ExpandPorts(arg, s.Worker.GetPorts())
		if err != nil {
			return nil, nil, fmt.Errorf("command of %s: %w", s.Life.Role, err)
		}
		command = append(command, arg)
	}
	ours(env, s)
	if s.Role.Distributed == job.Torch {
		if err := torch(env, s); err != nil {
			return nil, nil, err
		}
	}
	for key, value := range env {
		environ = append(environ, key+"="+value)
	}
	slices.Sort(environ)
	return command, environ, nil
}

// inherited is what a worker takes over of the service's environment: everything but the flags of our
// programs, the words of whoever supervises the service, and of an outer job.
func inherited(base []string) map[string]string {
	env := map[string]string{}
	for _, kv := range base {
		key, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok, key == "", strings.HasPrefix(key, envPrefix), isAddrs(key):
		case slices.Contains(torchNames, key), slices.Contains(supervisorNames, key), key == notify.HookPID:
		default:
			env[key] = value
		}
	}
	return env
}

// isAddrs says whether key is VIGIL_ROLE_<NAME>_ADDRS.
func isAddrs(key string) bool {
	return strings.HasPrefix(key, "VIGIL_ROLE_") && strings.HasSuffix(key, "_ADDRS")
}

// ours sets what every worker finds, whatever it is.
func ours(env map[string]string, s setting) {
	maps.Copy(env, map[string]string{
		"VIGIL_JOB":         s.JobName,
		"VIGIL_ROLE":        string(s.Life.Role),
		"VIGIL_RANK":        strconv.Itoa(s.Life.Rank),
		"VIGIL_INCARNATION": strconv.Itoa(s.Life.Incarnation),
		"VIGIL_LIFE":        s.Life.String(),
		"VIGIL_RESUME_STEP": strconv.FormatInt(s.Run.GetResumeStep(), 10),
		"VIGIL_SERVICE_URL": s.ServiceURL,
		"VIGIL_INBOX":       s.Inbox,
		"VIGIL_PEERS_FILE":  s.PeersFile,
		"NOTIFY_SOCKET":     s.NotifySocket,
	})
	if url := s.Run.GetControllerUrl(); url != "" {
		env["VIGIL_CONTROLLER_URL"] = url
	}
	for name, addrs := range s.Run.GetPeers() {
		env["VIGIL_ROLE_"+strings.ToUpper(name)+"_ADDRS"] = addrs
	}
	if path := injectedPath(s.HookFolder, env); path != "" {
		env["PYTHONPATH"] = path
	}
	unlessSet(env, "PYTHONUNBUFFERED", "1")
	if s.Role.WandB == job.WandBResume && s.Life.Rank == 0 { // every rank that has the id would write into the one run
		unlessSet(env, "WANDB_RUN_ID", s.Life.Job+"-"+string(s.Life.Role))
		unlessSet(env, "WANDB_RESUME", "allow")
	}
	if seen := visible(s); len(seen) > 0 {
		env[cmp.Or(s.Devices, devices.CUDA)] = strings.Join(seen, ",")
		if s.Devices == devices.CUDA { // nvidia-smi counts so, by which they are locked, and CUDA by speed
			unlessSet(env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID")
		}
	}
}

// visible lists the devices that a worker sees: its own, or by default those of all workers of its
// service in rank order, so that LOCAL_RANK indexes them.
func visible(s setting) []string {
	if s.Role.Devices == job.DevicesOwn {
		return s.Worker.GetDevices()
	}
	workers := slices.Clone(s.Run.GetWorkers())
	slices.SortStableFunc(workers, func(a, b *api.Worker) int { return int(a.GetRank()) - int(b.GetRank()) })
	var all []string
	for _, w := range workers {
		for _, device := range w.GetDevices() {
			if !slices.Contains(all, device) {
				all = append(all, device)
			}
		}
	}
	return all
}

// torch sets everything that torchrun sets. Each role is a world of its own.
func torch(env map[string]string, s setting) error {
	if s.Run.GetMasterAddr() == "" || s.Run.GetMasterPort() == 0 {
		return fmt.Errorf("compose environment of %s rank %d: the order names no master address and port", s.Life.Role, s.Life.Rank)
	}
	if uint32(s.Life.Rank) >= s.Run.GetWorldSize() {
		return fmt.Errorf("compose environment of %s rank %d: the order's world has %d ranks", s.Life.Role, s.Life.Rank, s.Run.GetWorldSize())
	}
	local := s.LocalRank
	if s.Role.Devices == job.DevicesOwn {
		local = 0
	}
	rank, world := strconv.Itoa(s.Life.Rank), strconv.Itoa(int(s.Run.GetWorldSize()))
	maps.Copy(env, map[string]string{
		"RANK":                         rank,
		"LOCAL_RANK":                   strconv.Itoa(local),
		"ROLE_RANK":                    rank,
		"ROLE_NAME":                    string(s.Life.Role),
		"GROUP_RANK":                   strconv.Itoa(int(s.Run.GetGroupRank())),
		"WORLD_SIZE":                   world,
		"LOCAL_WORLD_SIZE":             strconv.Itoa(len(s.Run.GetWorkers())),
		"ROLE_WORLD_SIZE":              world,
		"GROUP_WORLD_SIZE":             strconv.Itoa(int(s.Run.GetGroupWorldSize())),
		"MASTER_ADDR":                  s.Run.GetMasterAddr(),
		"MASTER_PORT":                  strconv.Itoa(int(s.Run.GetMasterPort())),
		"TORCHELASTIC_RESTART_COUNT":   strconv.Itoa(s.Life.Incarnation - 1),
		"TORCHELASTIC_MAX_RESTARTS":    strconv.Itoa(int(s.Run.GetMaxRestarts())),
		"TORCHELASTIC_RUN_ID":          s.Life.Job + "." + string(s.Life.Role),
		"TORCHELASTIC_ERROR_FILE":      s.ErrorFile,
		"TORCHELASTIC_USE_AGENT_STORE": "False",
	})
	unlessSet(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
	if s.TraceDir != "" {
		flightRecorder(env, s.TraceDir)
	}
	if len(s.Run.GetWorkers()) > 1 {
		unlessSet(env, "OMP_NUM_THREADS", "1")
	}
	return nil
}

// flightRecorder has NCCL's flight recorder write into dir; torch adds the rank to the names. Size and
// file have two names, of which earlier versions of torch know the second only, and later ones, where
// both are set, heed the first.
func flightRecorder(env map[string]string, dir string) {
	unlessSet(env, "TORCH_FR_BUFFER_SIZE", cmp.Or(env["TORCH_NCCL_TRACE_BUFFER_SIZE"], "2000"))
	unlessSet(env, "TORCH_NCCL_TRACE_BUFFER_SIZE", env["TORCH_FR_BUFFER_SIZE"])
	unlessSet(env, "TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
	unlessSet(env, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", cmp.Or(env["TORCH_FR_DUMP_TEMP_FILE"], filepath.Join(dir, "nccl_trace_rank_")))
	unlessSet(env, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", filepath.Join(dir, "nccl_pipe_rank_"))
}

func unlessSet(env map[string]string, key, value string) {
	if _, set := env[key]; !set {
		env[key] = value
	}
}
