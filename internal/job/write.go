package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"vigil/internal/role"
)

// YAML returns the job as a job file that says every default. Parse makes an equal job of it.
func (j *Job) YAML() []byte {
	var b bytes.Buffer
	if n := writeKeys(Keys(), target{job: j}); n != nil {
		block(&b, n, "")
	}
	return b.Bytes()
}

func block(b *bytes.Buffer, n *node, indent string) {
	for _, e := range n.entries {
		b.WriteString(indent + flow(text(e.key)) + ":")
		if e.value.form == formMapping {
			b.WriteString("\n")
			block(b, e.value, indent+"  ")
			continue
		}
		b.WriteString(" " + flow(e.value) + "\n")
	}
}

// plain text needs no quotes in YAML 1.1 and 1.2, in or out of a list.
var (
	plain    = regexp.MustCompile(`^([A-Za-z_/][A-Za-z0-9_./-]*|([0-9]+(h|m|s|ms|Ki|Mi|Gi|Ti))+)$`)
	reserved = regexp.MustCompile(`(?i)^(y|yes|n|no|true|false|on|off|null|[.](inf|nan))$`)
)

func flow(n *node) string {
	switch n.form {
	case formText:
		if plain.MatchString(n.text) && !reserved.MatchString(n.text) {
			return n.text
		}
		return strconv.Quote(n.text)
	case formList:
		items := make([]string, len(n.items))
		for i, item := range n.items {
			items[i] = flow(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case formMapping: // an item of a list
		entries := make([]string, len(n.entries))
		for i, e := range n.entries {
			entries[i] = flow(text(e.key)) + ": " + flow(e.value)
		}
		return "{" + strings.Join(entries, ", ") + "}"
	default:
		return n.text
	}
}

// Schema returns the JSON schema (draft 2020-12) of the job file, for editors. It says what each key
// may be; what must hold between keys, the parser says.
func Schema() []byte {
	s := object(Keys())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "vigil job file"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		panic("encode the job file's schema: " + err.Error()) // strings and numbers only
	}
	return b.Bytes()
}

func object(keys []Key) fragment {
	properties, required := fragment{}, []string{}
	for _, k := range keys {
		properties[k.Name] = k.fragment()
		if k.Required {
			required = append(required, k.Name)
		}
	}
	s := fragment{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (k Key) fragment() fragment {
	s := maps.Clone(k.schema)
	switch {
	case len(k.Keys) == 1 && k.Keys[0].Name == "NAME" && len(k.Keys[0].Keys) > 0:
		s = anyNamed(rolePattern, object(k.Keys[0].Keys))
		s["minProperties"] = 1
		s["propertyNames"] = fragment{"pattern": rolePattern, "not": fragment{"enum": role.Taken()}}
	case s == nil:
		s = object(k.Keys)
	}
	s["description"] = strings.ReplaceAll(k.Meaning, "`", "")
	return s
}

// Reference returns the table of all keys in Markdown, as docs/reference/job-file.md has it.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
	var rows func(prefix string, keys []Key)
	rows = func(prefix string, keys []Key) {
		for _, k := range keys {
			path, byDefault := prefix+k.Name, k.Default
			if k.Required {
				byDefault = "required"
			}
			if k.Meaning != "" {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", path, k.Type, byDefault, k.Meaning)
			}
			rows(path+".", k.Keys)
		}
	}
	rows("", Keys())
	return b.String()
}
