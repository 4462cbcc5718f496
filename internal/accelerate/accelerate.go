// Package accelerate reads the file that "accelerate config" writes (Hugging Face accelerate), so that
// what was started by "accelerate launch" runs as workers of ours: as many, with the environment that
// they would have found. What cannot be had so is refused, never passed over.
package accelerate

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"vigil/internal/nearest"
)

// Launch is what "accelerate launch" would have done with the file.
type Launch struct {
	Workers int               // num_processes; 0 where the file leaves it open
	Alone   bool              // its one process belongs to no world: it finds nothing that torchrun sets
	Environ map[string]string // what it sets for every process, beyond what torchrun does
	Notes   []string          // what the file says and has no effect here, for people to read
}

// maxBytes is more than any such file has.
const maxBytes = 1 << 20

// Read reads a file, YAML or JSON. The error names the file and the key.
func Read(path string) (Launch, error) {
	f, err := os.Open(path)
	if err != nil {
		return Launch{}, fmt.Errorf("read accelerate's configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = errors.New("larger than 1 MiB")
	}
	if err != nil {
		return Launch{}, fmt.Errorf("read accelerate's configuration %s: %w", path, err)
	}
	return Parse(path, text)
}

// known are the keys of such a file (accelerate/commands/config/config_args.py, ClusterConfig, with the
// older fp16 and dynamo_backend).
var known = []string{
	"compute_environment", "distributed_type", "num_processes", "num_machines", "machine_rank",
	"mixed_precision", "fp16", "use_cpu", "debug", "gpu_ids", "enable_cpu_affinity",
	"main_process_ip", "main_process_port", "main_training_function", "rdzv_backend", "same_network",
	"dynamo_backend", "dynamo_config",
	"deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config", "fp8_config", "mpirun_config",
	"downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env",
	"commands", "command_file",
}

// beyondUs are the keys that must say nothing: what they ask for is set up by accelerate itself.
var beyondUs = []string{
	"deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config", "fp8_config", "mpirun_config",
	"downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env",
	"commands", "command_file",
}

// instead says what to do about a file that is refused.
const instead = "let accelerate do it: vigil run -- accelerate launch --config_file FILE train.py"

// Parse is Read of the text of the file name. The error gathers everything that is wrong, a line each.
func Parse(name string, text []byte) (Launch, error) {
	said := map[string]any{}
	if err := yaml.Unmarshal(text, &said); err != nil {
		return Launch{}, fmt.Errorf("%s: not a mapping in YAML: %w", name, err)
	}
	f := &file{said: said, at: name + ": "}
	l := f.launch()
	return l, errors.Join(f.wrong...)
}

// file is what a file says, and what is wrong with it.
type file struct {
	said  map[string]any
	at    string // what its errors begin with
	wrong []error
}

func (f *file) refuse(key, format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Errorf(f.at+key+": "+format, args...))
}

// launch reads every key.
func (f *file) launch() Launch {
	for _, key := range slices.Sorted(maps.Keys(f.said)) {
		switch {
		case !slices.Contains(known, key):
			f.refuse(key, "unknown key%s", didYouMean(key))
		case slices.Contains(beyondUs, key) && says(f.said[key]):
			f.refuse(key, "vigil does not set this up; %s", instead)
		}
	}
	l := Launch{Environ: map[string]string{}}
	kind := f.kind()
	if n := f.number("num_machines", 1); n > 1 {
		f.refuse("num_machines", "%d: only this machine can be used; want 1", n)
	}
	l.Workers = f.number("num_processes", 0)
	if kind == one {
		if l.Workers > 1 {
			f.refuse("num_processes", "%d with distributed_type NO: want 1, or MULTI_GPU or MULTI_CPU", l.Workers)
		}
		l.Workers, l.Alone = 1, true
	}
	if port := f.number("main_process_port", 0); port != 0 {
		l.Notes = append(l.Notes, fmt.Sprintf("main_process_port %d is not used: every life has a free port of its own", port))
	}
	f.environ(l.Environ, kind)
	f.devices(l.Environ, kind, l.Workers)
	return l
}

// The values of distributed_type that are workers with torchrun's environment and no more.
const (
	one      = "NO"
	multiGPU = "MULTI_GPU"
	multiCPU = "MULTI_CPU"
)

// kind reads where and how processes are to run.
func (f *file) kind() string {
	if where := f.text("compute_environment", "LOCAL_MACHINE"); where != "LOCAL_MACHINE" {
		f.refuse("compute_environment", "%s: want LOCAL_MACHINE", where)
	}
	kind := f.text("distributed_type", "")
	switch kind {
	case one, multiGPU, multiCPU:
	case "":
		f.refuse("distributed_type", "it is missing")
	default:
		f.refuse("distributed_type", "%s: want NO, MULTI_GPU or MULTI_CPU; %s", kind, instead)
	}
	if kind == multiGPU && f.truth("use_cpu") {
		f.refuse("use_cpu", "not with distributed_type MULTI_GPU")
	}
	return kind
}

// environ sets what accelerate sets (accelerate/utils/launch.py, prepare_multi_gpu_env and
// prepare_simple_launcher_cmd_env).
func (f *file) environ(env map[string]string, kind string) {
	std := "no"
	if f.truth("fp16") {
		std = "fp16"
	}
	precision := strings.ToLower(f.text("mixed_precision", std))
	switch precision {
	case "no", "fp16", "bf16":
		env["ACCELERATE_MIXED_PRECISION"] = precision
	case "fp8":
		f.refuse("mixed_precision", "vigil does not set fp8 up; %s", instead)
	default:
		f.refuse("mixed_precision", "%s: want no, fp16 or bf16", precision)
	}
	f.dynamo(env)
	if f.truth("debug") {
		env["ACCELERATE_DEBUG_MODE"] = "true"
	}
	if f.truth("enable_cpu_affinity") {
		env["ACCELERATE_CPU_AFFINITY"] = "1"
	}
	if kind == multiGPU {
		return
	}
	cpu := f.truth("use_cpu") || kind == multiCPU
	env["ACCELERATE_USE_CPU"] = python(cpu)
	if cpu {
		env["KMP_AFFINITY"], env["KMP_BLOCKTIME"] = "granularity=fine,compact,1,0", "1"
	}
}

// dynamo sets how torch.compile is used.
func (f *file) dynamo(env map[string]string) {
	config, ok := f.said["dynamo_config"].(map[string]any)
	if !ok && says(f.said["dynamo_config"]) {
		f.refuse("dynamo_config", "want a mapping")
	}
	inner := &file{said: map[string]any{"backend": f.said["dynamo_backend"]}, at: f.at + "dynamo_config."}
	for key, value := range config {
		key = strings.TrimPrefix(key, "dynamo_")
		switch key {
		case "backend", "mode", "use_dynamic", "use_fullgraph", "use_regional_compilation":
			inner.said[key] = value
		default:
			f.refuse("dynamo_config."+key, "unknown key")
		}
	}
	env["ACCELERATE_DYNAMO_BACKEND"] = strings.ToUpper(inner.text("backend", "NO"))
	env["ACCELERATE_DYNAMO_MODE"] = inner.text("mode", "default")
	for _, key := range []string{"use_fullgraph", "use_dynamic", "use_regional_compilation"} {
		env["ACCELERATE_DYNAMO_"+strings.ToUpper(key)] = python(inner.truth(key))
	}
	f.wrong = append(f.wrong, inner.wrong...)
}

// devices sets what the processes see.
func (f *file) devices(env map[string]string, kind string, workers int) {
	ids, ok := f.said["gpu_ids"]
	text := strings.ReplaceAll(fmt.Sprint(ids), " ", "")
	if !ok || ids == nil || text == "" || text == "all" {
		return
	}
	if n := strings.Count(text, ",") + 1; kind == multiGPU && n < workers {
		f.refuse("gpu_ids", "%s: %d devices for %d processes", text, n, workers)
		return
	}
	env["CUDA_VISIBLE_DEVICES"] = text
}

// number reads a whole number; -1, which accelerate takes for "not said", and null are std.
func (f *file) number(key string, std int) int {
	switch v := f.said[key].(type) {
	case nil:
		return std
	case uint64:
		if v <= 100_000 {
			return int(v)
		}
	case int64:
		if v == -1 {
			return std
		}
	}
	f.refuse(key, "%v: want a whole number", f.said[key])
	return std
}

func (f *file) text(key, std string) string {
	switch v := f.said[key].(type) {
	case nil:
		return std
	case string:
		return v
	case bool:
		if !v {
			return "no" // as older YAML has it
		}
	}
	f.refuse(key, "%v: want text", f.said[key])
	return std
}

func (f *file) truth(key string) bool {
	switch v := f.said[key].(type) {
	case nil:
	case bool:
		return v
	case string:
		switch strings.ToLower(v) {
		case "yes", "true", "on":
			return true
		case "no", "false", "off", "":
			return false
		}
		f.refuse(key, "%s: want true or false", v)
	default:
		f.refuse(key, "%v: want true or false", v)
	}
	return false
}

// says whether a value asks for anything.
func says(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != "" && v != "no"
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// python is how Python writes a truth.
func python(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

func didYouMean(key string) string {
	if meant := nearest.Word(key, known); meant != "" {
		return fmt.Sprintf("; did you mean %q?", meant)
	}
	return ""
}
