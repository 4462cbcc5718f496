package accelerate

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// written is what "accelerate config" writes for four devices of one machine.
const written = `compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
`

// plain is what every process finds.
var plain = map[string]string{
	"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_DYNAMO_MODE": "default",
	"ACCELERATE_DYNAMO_USE_FULLGRAPH": "False", "ACCELERATE_DYNAMO_USE_DYNAMIC": "False", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}

func and(more map[string]string) map[string]string {
	all := maps.Clone(plain)
	maps.Copy(all, more)
	return all
}

func TestAFileOfAccelerateBecomesWorkersAndTheirEnvironment(t *testing.T) {
	for _, c := range []struct {
		about, text string
		want        Launch
	}{
		{"as accelerate config writes it", written, Launch{Workers: 4, Environ: and(map[string]string{"ACCELERATE_MIXED_PRECISION": "bf16"})}},
		{"some of the devices", "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 4, 5\n", Launch{Workers: 2, Environ: and(map[string]string{"CUDA_VISIBLE_DEVICES": "4,5"})}},
		{"one device", "distributed_type: NO\ngpu_ids: 3\n", Launch{Workers: 1, Alone: true, Environ: and(map[string]string{"CUDA_VISIBLE_DEVICES": "3", "ACCELERATE_USE_CPU": "False"})}},
		{"several processes on CPUs", "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n", Launch{Workers: 2, Environ: and(map[string]string{
			"ACCELERATE_USE_CPU": "True", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"})}},
		{"the number left open", "distributed_type: MULTI_GPU\nnum_processes: -1\n", Launch{Environ: plain}},
		{"as an older version wrote it", "distributed_type: MULTI_GPU\nnum_processes: 2\nfp16: true\ndynamo_backend: inductor\n", Launch{Workers: 2, Environ: and(map[string]string{
			"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"})}},
		{"compiled", "distributed_type: MULTI_GPU\nnum_processes: 2\ndynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_mode: max-autotune\n  dynamo_use_dynamic: true\n", Launch{Workers: 2, Environ: and(map[string]string{
			"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_MODE": "max-autotune", "ACCELERATE_DYNAMO_USE_DYNAMIC": "True"})}},
		{"a port, which is of no use", "distributed_type: MULTI_GPU\nnum_processes: 2\nmain_process_port: 29501\n", Launch{Workers: 2, Environ: plain,
			Notes: []string{"main_process_port 29501 is not used: every life has a free port of its own"}}},
		{"debugging and affinity", "distributed_type: MULTI_GPU\nnum_processes: 2\ndebug: true\nenable_cpu_affinity: true\n", Launch{Workers: 2, Environ: and(map[string]string{
			"ACCELERATE_DEBUG_MODE": "true", "ACCELERATE_CPU_AFFINITY": "1"})}},
		{"JSON", `{"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 3}`, Launch{Workers: 3, Environ: plain}},
	} {
		got, err := Parse("a.yaml", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.about, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.about, diff)
		}
	}
}

func TestWhatCannotBeHonouredIsRefusedByItsKey(t *testing.T) {
	const base = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
	for _, c := range []struct{ text, want string }{
		{base + "num_machines: 2", "num_machines: 2: only this machine can be used; want 1"},
		{"distributed_type: DEEPSPEED\nnum_processes: 2", "distributed_type: DEEPSPEED: want NO, MULTI_GPU or MULTI_CPU; let accelerate do it: vigil run -- accelerate launch"},
		{"distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}", "fsdp_config: vigil does not set this up"},
		{base + "deepspeed_config: {zero_stage: 3}", "deepspeed_config: vigil does not set this up"},
		{base + "tpu_use_cluster: true", "tpu_use_cluster: vigil does not set this up"},
		{base + "mixed_precision: fp8", "mixed_precision: vigil does not set fp8 up"},
		{base + "mixed_precision: half", "mixed_precision: half: want no, fp16 or bf16"},
		{base + "use_cpu: true", "use_cpu: not with distributed_type MULTI_GPU"},
		{base + "gpu_ids: '1'", "gpu_ids: 1: 1 devices for 2 processes"},
		{base + "num_process: 2", `num_process: unknown key; did you mean "num_processes"?`},
		{base + "dynamo_config: {dynamo_colour: red}", "dynamo_config.colour: unknown key"},
		{base + "dynamo_config: {dynamo_use_dynamic: perhaps}", "dynamo_config.use_dynamic: perhaps: want true or false"},
		{"compute_environment: AMAZON_SAGEMAKER\n" + base, "compute_environment: AMAZON_SAGEMAKER: want LOCAL_MACHINE"},
		{"distributed_type: MULTI_GPU\nnum_processes: two", "num_processes: two: want a whole number"},
		{"distributed_type: NO\nnum_processes: 2", "num_processes: 2 with distributed_type NO: want 1"},
		{"num_processes: 2", "distributed_type: it is missing"},
		{"- 1", "not a mapping in YAML"},
	} {
		if _, err := Parse("a.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
	}
}

func TestAFileThatCannotBeReadIsNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := Read(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v", err)
	}
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(large); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("got %v", err)
	}
}
