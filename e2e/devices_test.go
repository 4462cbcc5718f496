package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// tools puts a stand-in for a vendor's tool into a folder: "tools DIR nvidia-smi|rocm-smi|npu-smi". It shows eight
// devices that only this script knows, and the processes of DIR/users, which has a pid and an index in each line.
func tools(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	dir, name := ts.MkAbs(args[0]), args[1]
	text, known := standIns[name]
	if !known {
		ts.Fatalf("no stand-in for %s", name)
	}
	tag := make([]byte, 4)
	_, _ = rand.Read(tag) // never fails
	text = strings.ReplaceAll(text, "TAG", hex.EncodeToString(tag))
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "users"), nil, 0o644))
	ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
}

// standIns are the tools as far as they are asked, by their documented output.
var standIns = map[string]string{
	"nvidia-smi": `#!/bin/sh
d=$(dirname "$0")
case "$1" in
--query-gpu=*) for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-TAG-$i, NVIDIA H100 80GB HBM3, 81559 MiB"; done;;
--query-compute-apps=*) while read -r pid i; do echo "$pid, GPU-TAG-$i"; done <"$d/users";;
*) exit 6;;
esac
`,
	"rocm-smi": `#!/bin/sh
d=$(dirname "$0")
case "$*" in
*--showpidgpus*)
	echo "============================ ROCm System Management Interface ============================"
	echo "================================== GPUs Indexed by PID ==================================="
	while read -r pid i; do printf 'PID %s is using 1 DRM device(s):\n%s \n' "$pid" "$i"; done <"$d/users"
	echo "=========================================================================================="
	echo "================================== End of ROCm SMI Log ===================================";;
*--json*)
	printf '{'
	for i in 0 1 2 3 4 5 6 7; do
		printf '"card%s": {"Unique ID": "0xTAG%s", "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297586688", "Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1", "PCI Bus": "0000:0%s:00.0"}, ' $i $i $i
	done
	echo '"system": {"Driver version": "6.10.5"}}';;
*) exit 2;;
esac
`,
	"npu-smi": `#!/bin/sh
d=$(dirname "$0")
line="+===========================+===============+====================================================+"
case "$*" in
"info -m")
	printf '\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name\n'
	for i in 0 1 2 3 4 5 6 7; do
		printf '\t%s                              0                              %s                              Ascend 910B3\n' $i $i
		printf '\t%s                              1                              -                              Mcu\n' $i
	done;;
info)
	echo "| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |"
	echo "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
	echo "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"
	for i in 0 1 2 3 4 5 6 7; do
		health="OK     "; [ ! -e "$d/ill.$i" ] || health="Alarm  "
		echo "$line"
		echo "| $i     910B3               | $health       | 93.1        36                0    / 0             |"
		echo "| 0                         | TAG:0$i:00.0 | 0           0    / 0          3389 / 65536         |"
	done
	echo "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
	while read -r pid i; do
		echo "$line"
		echo "| $i       0                 | $pid          | python3                  | 3000                    |"
	done <"$d/users"
	echo "$line";;
*) exit 2;;
esac
`,
}
