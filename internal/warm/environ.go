package warm

import (
	"slices"
	"strings"
)

// perLife are the variables that differ from life to life or from rank to rank. The fork server is started
// without them: what a module reads of them while it is imported would be another life's.
var perLife = []string{
	"VIGIL_LIFE", "VIGIL_RANK", "VIGIL_INCARNATION", "VIGIL_RESUME_STEP", "VIGIL_SERVICE_URL", "VIGIL_INBOX", "VIGIL_PEERS_FILE",
	"NOTIFY_SOCKET",
	"RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK",
	"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
	"MASTER_ADDR", "MASTER_PORT",
	"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
	"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE",
	"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
	"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES",
}

// Switch is the variable that tells a sitecustomize module that it runs in a fork server: it may leave functions
// in the list sys._vigil_forked, which each worker calls once its environment is its own. Workers do not have
// the variable.
const Switch = "VIGIL_FORK_SERVER"

// lasting returns what of env is the same in all lives, sorted by name. more names variables that are not.
func lasting(env, more []string) []string {
	var out []string
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		addrs := strings.HasPrefix(name, "VIGIL_ROLE_") && strings.HasSuffix(name, "_ADDRS")
		if addrs || slices.Contains(perLife, name) || slices.Contains(more, name) {
			continue
		}
		out = append(out, pair)
	}
	slices.SortStableFunc(out, func(a, b string) int { // of several with one name the first one counts
		a, _, _ = strings.Cut(a, "=")
		b, _, _ = strings.Cut(b, "=")
		return strings.Compare(a, b)
	})
	return out
}
