package service

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
)

// critic is the setting of rank 3, the second of two workers on the second of two services, in its
// role's third life.
func critic() setting {
	return setting{
		JobName: "tiny",
		Life:    role.Life{Job: "tiny-0a1b2c3d", Role: "critic", Incarnation: 3, Rank: 3, Attempt: 1},
		Role:    &job.Role{Name: "critic", Command: []string{"python3", "critic.py"}, Devices: job.DevicesAll, Distributed: job.Torch},
		Run: &api.Run{
			Incarnation: 3, ResumeStep: 41, WorldSize: 4, FirstRank: 2, GroupRank: 1, GroupWorldSize: 2,
			MasterAddr: "127.0.0.1", MasterPort: 29511, MaxRestarts: 3,
			Workers: []*api.Worker{
				{Rank: 2, Attempt: 1, Devices: []string{"4"}},
				{Rank: 3, Attempt: 1, Devices: []string{"5"}, Ports: map[string]uint32{"http": 31007}},
			},
			Peers: map[string]string{"actor": "127.0.0.1:31000,127.0.0.1:31001"},
		},
		Worker:       &api.Worker{Rank: 3, Attempt: 1, Devices: []string{"5"}, Ports: map[string]uint32{"http": 31007}},
		LocalRank:    1,
		NotifySocket: "/run/vigil/n1", Inbox: "/run/vigil/i1", PeersFile: "/run/vigil/p1", ErrorFile: "/logs/error.json",
		ServiceURL: "http://127.0.0.1:4000/life/tiny-0a1b2c3d/critic/3/3/1",
	}
}

// vigilOnly is what critic() finds whatever its distributed kind is.
func vigilOnly() map[string]string {
	return map[string]string{
		"VIGIL_JOB": "tiny", "VIGIL_ROLE": "critic", "VIGIL_RANK": "3", "VIGIL_INCARNATION": "3",
		"VIGIL_LIFE": "tiny-0a1b2c3d/critic/3/3/1", "VIGIL_RESUME_STEP": "41",
		"VIGIL_SERVICE_URL": "http://127.0.0.1:4000/life/tiny-0a1b2c3d/critic/3/3/1",
		"VIGIL_INBOX":       "/run/vigil/i1", "VIGIL_PEERS_FILE": "/run/vigil/p1", "NOTIFY_SOCKET": "/run/vigil/n1",
		"VIGIL_ROLE_ACTOR_ADDRS": "127.0.0.1:31000,127.0.0.1:31001",
		"PYTHONUNBUFFERED":       "1",
		"CUDA_VISIBLE_DEVICES":   "4,5",
	}
}

func with(m map[string]string, more ...string) map[string]string {
	m = maps.Clone(m)
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// torchrun is vigilOnly and all that torchrun would set for the same rank.
func torchrun() map[string]string {
	return with(vigilOnly(),
		"RANK", "3", "LOCAL_RANK", "1", "ROLE_RANK", "3", "ROLE_NAME", "critic", "GROUP_RANK", "1",
		"WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "ROLE_WORLD_SIZE", "4", "GROUP_WORLD_SIZE", "2",
		"MASTER_ADDR", "127.0.0.1", "MASTER_PORT", "29511",
		"TORCHELASTIC_RESTART_COUNT", "2", "TORCHELASTIC_MAX_RESTARTS", "3",
		"TORCHELASTIC_RUN_ID", "tiny-0a1b2c3d.critic", "TORCHELASTIC_ERROR_FILE", "/logs/error.json",
		"TORCHELASTIC_USE_AGENT_STORE", "False", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "OMP_NUM_THREADS", "1")
}

func without(m map[string]string, names ...string) map[string]string {
	m = maps.Clone(m)
	for _, n := range names {
		delete(m, n)
	}
	return m
}

func asMap(t *testing.T, environ []string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, kv := range environ {
		key, value, ok := strings.Cut(kv, "=")
		if _, twice := m[key]; !ok || twice {
			t.Fatalf("%q is not one setting of its own", kv)
		}
		m[key] = value
	}
	return m
}

// shows: A15
func TestAWorkerFindsWhatTorchrunWouldSetAndWhatVigilSays(t *testing.T) {
	tests := []struct {
		name   string
		change func(*setting)
		want   map[string]string
	}{
		{"the second rank on the second service of a role", func(*setting) {}, torchrun()},
		{"distributed none sets none of torchrun's, and takes none over", func(s *setting) {
			s.Role.Distributed = job.None
			s.Base = []string{"RANK=0", "WORLD_SIZE=8", "MASTER_ADDR=elsewhere", "MASTER_PORT=1"}
			s.Run.MasterAddr, s.Run.MasterPort = "", 0
		}, vigilOnly()},
		{"the first life counts no restart", func(s *setting) {
			s.Life.Incarnation = 1
		}, with(torchrun(), "TORCHELASTIC_RESTART_COUNT", "0", "VIGIL_INCARNATION", "1", "VIGIL_LIFE", "tiny-0a1b2c3d/critic/1/3/1")},
		{"devices of another vendor are in its variable", func(s *setting) {
			s.Devices = "HIP_VISIBLE_DEVICES"
		}, without(with(torchrun(), "HIP_VISIBLE_DEVICES", "4,5"), "CUDA_VISIBLE_DEVICES")},
		{"CUDA counts devices as nvidia-smi does", func(s *setting) {
			s.Devices = "CUDA_VISIBLE_DEVICES"
		}, with(torchrun(), "CUDA_DEVICE_ORDER", "PCI_BUS_ID")},
		{"a single local worker keeps its threads", func(s *setting) {
			s.Run.Workers = s.Run.Workers[1:]
			s.LocalRank = 0
		}, without(with(torchrun(), "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "1", "CUDA_VISIBLE_DEVICES", "5"), "OMP_NUM_THREADS")},
		{"only rank 0 goes on with a run of Weights & Biases", func(s *setting) {
			s.Role.WandB = job.WandBResume
		}, torchrun()},
		{"what the user set of threads and error handling stays", func(s *setting) {
			s.Base = []string{"OMP_NUM_THREADS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "PYTHONUNBUFFERED="}
			s.Role.Env = map[string]string{"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}
		}, with(torchrun(), "OMP_NUM_THREADS", "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", "PYTHONUNBUFFERED", "", "WANDB_RUN_ID", "mine", "WANDB_RESUME", "must")},
		{"the world is ours to set, not the user's", func(s *setting) {
			s.Base = []string{"RANK=9", "TORCHELASTIC_RUN_ID=outer"}
			s.Role.Env = map[string]string{"WORLD_SIZE": "100", "VIGIL_RANK": "7"}
		}, torchrun()},
		{"the job file beats env_file beats the controller's own", func(s *setting) {
			s.Base = []string{"A=1", "B=1", "C=1"}
			s.FromFile = map[string]string{"B": "2", "C": "2"}
			s.Role.Env = map[string]string{"C": "3"}
		}, with(torchrun(), "A", "1", "B", "2", "C", "3")},
		{"flags of our programs, an outer job and an outer supervisor are not inherited", func(s *setting) {
			s.Base = []string{"VIGIL_OPT_TOKEN=secret", "VIGIL_ROLE_DATA_ADDRS=1.2.3.4:5", "WATCHDOG_USEC=3", "LISTEN_FDS=1", "HOME=/root"}
		}, with(torchrun(), "HOME", "/root")},
		{"an inherited device list that nobody divides stays", func(s *setting) {
			s.Base = []string{"CUDA_VISIBLE_DEVICES=0,1"}
			for _, w := range s.Run.Workers {
				w.Devices = nil
			}
		}, with(torchrun(), "CUDA_VISIBLE_DEVICES", "0,1")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := critic()
			tt.change(&s)
			_, environ, err := compose(s)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSorted(environ) {
				t.Error("the environment is not sorted")
			}
			if diff := cmp.Diff(tt.want, asMap(t, environ)); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryRankSeesTheDevicesOfItsServiceInRankOrderUnlessItWantsItsOwn(t *testing.T) {
	tests := []struct {
		name           string
		kind           job.Devices
		workers        []*api.Worker // the setting is that of the last
		visible, local string
	}{
		{"all, in rank order whatever the order of the order", job.DevicesAll,
			[]*api.Worker{{Rank: 3, Devices: []string{"5"}}, {Rank: 2, Devices: []string{"6"}}}, "6,5", "1"},
		{"all, where each is told all already", job.DevicesAll,
			[]*api.Worker{{Rank: 2, Devices: []string{"6", "5"}}, {Rank: 3, Devices: []string{"6", "5"}}}, "6,5", "1"},
		{"own narrows to one and counts from nought", job.DevicesOwn,
			[]*api.Worker{{Rank: 2, Devices: []string{"6"}}, {Rank: 3, Devices: []string{"5"}}}, "5", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := critic()
			s.Role.Devices = tt.kind
			s.Run.Workers = tt.workers
			s.Worker = tt.workers[len(tt.workers)-1]
			_, environ, err := compose(s)
			if err != nil {
				t.Fatal(err)
			}
			env := asMap(t, environ)
			if env["CUDA_VISIBLE_DEVICES"] != tt.visible || env["LOCAL_RANK"] != tt.local {
				t.Errorf("sees %q as local rank %s, want %q as %s", env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"], tt.visible, tt.local)
			}
		})
	}
}

func TestLeasedPortsAreNamedInCommandAndEnvironment(t *testing.T) {
	s := critic()
	s.Role.Command = []string{"serve", "--port=${port.http}", "--keep=${HOME}", "$5"}
	s.Role.Env = map[string]string{"URL": "http://x:${port.http}/${port.http}"}
	command, environ, err := compose(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"serve", "--port=31007", "--keep=${HOME}", "$5"}, command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if got := asMap(t, environ)["URL"]; got != "http://x:31007/31007" {
		t.Errorf("URL=%s", got)
	}
	s.Role.Command = []string{"serve", "${port.grpc}"}
	if _, _, err := compose(s); err == nil || !strings.Contains(err.Error(), `no port "grpc"`) {
		t.Errorf("a port that was not leased: %v", err)
	}
}

func TestATorchWorkerWithoutAMasterOrOutsideItsWorldIsRefused(t *testing.T) {
	for want, change := range map[string]func(*api.Run){
		"no master": func(r *api.Run) { r.MasterPort = 0 },
		"3 ranks":   func(r *api.Run) { r.WorldSize = 3 },
	} {
		s := critic()
		change(s.Run)
		if _, _, err := compose(s); err == nil || !strings.Contains(err.Error(), "critic rank 3") || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want one with %q", err, want)
		}
	}
}

// Who asks for it has one W&B run over all restarts, and only rank 0 is in it: what is handed to every rank has them all
// write into one run.
// shows: FAULT-G3
func TestRankZeroAloneGoesOnWithARunOfWeightsAndBiases(t *testing.T) {
	ids := func(change func(*setting)) (id, resume string) {
		s := critic()
		s.Role.WandB, s.Life.Rank, s.LocalRank = job.WandBResume, 0, 0
		change(&s)
		_, environ, err := compose(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range environ {
			if value, ok := strings.CutPrefix(kv, "WANDB_RUN_ID="); ok {
				id = value
			}
			if value, ok := strings.CutPrefix(kv, "WANDB_RESUME="); ok {
				resume = value
			}
		}
		return id, resume
	}
	for _, tt := range []struct {
		what       string
		change     func(*setting)
		id, resume string
	}{
		{"rank 0", func(*setting) {}, "tiny-0a1b2c3d-critic", "allow"},
		{"rank 0 of a later life", func(s *setting) { s.Life.Incarnation, s.Life.Attempt = 9, 4 }, "tiny-0a1b2c3d-critic", "allow"},
		{"rank 0 of another run", func(s *setting) { s.Life.Job = "tiny-99999999" }, "tiny-99999999-critic", "allow"},
		{"rank 0 of a role without torch's environment", func(s *setting) { s.Role.Distributed = job.None }, "tiny-0a1b2c3d-critic", "allow"},
		{"rank 1", func(s *setting) { s.Life.Rank = 1 }, "", ""},
		{"nobody asked", func(s *setting) { s.Role.WandB = job.WandBNone }, "", ""},
		{"a role of an earlier version", func(s *setting) { s.Role.WandB = "" }, "", ""},
		{"the user has set it", func(s *setting) { s.Base = []string{"WANDB_RUN_ID=mine", "WANDB_RESUME=must"} }, "mine", "must"},
		{"the user has set it, and not asked", func(s *setting) { s.Base, s.Role.WandB = []string{"WANDB_RUN_ID=mine"}, job.WandBNone }, "mine", ""},
	} {
		if id, resume := ids(tt.change); id != tt.id || resume != tt.resume {
			t.Errorf("%s: WANDB_RUN_ID=%q WANDB_RESUME=%q, want %q and %q", tt.what, id, resume, tt.id, tt.resume)
		}
	}
}
