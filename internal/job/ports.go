package job

import (
	"fmt"
	"strconv"
	"strings"
)

const portOpening = "${port."

// reference is one ${port.NAME} in a text.
type reference struct {
	name     string
	from, to int // bytes of the text; to is after the closing brace
	closed   bool
}

func portReferences(text string) []reference {
	var all []reference
	for at := 0; ; {
		i := strings.Index(text[at:], portOpening)
		if i < 0 {
			return all
		}
		from := at + i
		name, _, closed := strings.Cut(text[from+len(portOpening):], "}")
		at = from + len(portOpening) + len(name)
		if closed {
			at++
		}
		all = append(all, reference{name, from, at, closed})
	}
}

// ExpandPorts replaces every ${port.NAME} in text by the number of the port of that name. Everything
// else that has a dollar is left as it is. The error names a port that is not there.
func ExpandPorts[N ~int | ~uint32](text string, ports map[string]N) (string, error) {
	var b strings.Builder
	at := 0
	for _, ref := range portReferences(text) {
		if !ref.closed {
			continue
		}
		number, ok := ports[ref.name]
		if !ok {
			return "", fmt.Errorf("%s: no port %q was leased for this worker", text[ref.from:ref.to], ref.name)
		}
		b.WriteString(text[at:ref.from])
		b.WriteString(strconv.FormatInt(int64(number), 10))
		at = ref.to
	}
	b.WriteString(text[at:])
	return b.String(), nil
}
