package job

import (
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

// ExpandPorts replaces every ${port.NAME} in text by the number that ports has for NAME. A name that
// ports does not have stays as it is; a parsed job names declared ports only.
func ExpandPorts(text string, ports map[string]int) string {
	var b strings.Builder
	at := 0
	for _, ref := range portReferences(text) {
		number, ok := ports[ref.name]
		if !ok || !ref.closed {
			continue
		}
		b.WriteString(text[at:ref.from])
		b.WriteString(strconv.Itoa(number))
		at = ref.to
	}
	b.WriteString(text[at:])
	return b.String()
}
