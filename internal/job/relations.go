package job

import (
	"fmt"
	"slices"
	"strings"

	"vigil/internal/nearest"
	"vigil/internal/role"
)

// relations finds what is wrong between the keys of a job that are each right by themselves.
func (j *Job) relations() []Problem {
	var found []Problem
	wrong := func(key, what, fix string) { found = append(found, j.problem(key, what, fix)) }
	if _, ok := j.Role(j.Lead); !ok && j.Lead != "" && len(j.Roles) > 0 {
		wrong("lead_role", fmt.Sprintf("there is no role %q", j.Lead), j.roles(j.Lead))
	}
	for i := range j.Roles {
		r := &j.Roles[i]
		key := "roles." + string(r.Name)
		j.references(r, key+".depends_on", r.DependsOn, wrong)
		j.references(r, key+".restart.also", r.Restart.Also, wrong)
		r.interpreted(key, wrong)
		r.progress(key+".progress", wrong)
		r.logs(key+".logs", wrong)
		r.unit(key+".restart", wrong)
		r.rules(key+".restart.rules", wrong)
		r.portsUsed(key, wrong)
		r.probe(key+".ready", r.Ready, wrong)
		if r.Alive != nil {
			r.probe(key+".alive", &r.Alive.Probe, wrong)
		}
		if b := r.Restart.BackOff; b.Max < b.Base {
			wrong(key+".restart.backoff.max", fmt.Sprintf("the longest wait, %v, is shorter than the first, %v", b.Max, b.Base), "raise max or lower base")
		}
	}
	j.groups(wrong)
	j.cycles(wrong)
	return found
}

type tell func(key, what, fix string)

// choices says which of the names was meant, or which there are. Among very many it does not look.
func choices(word, kind string, names []string) string {
	if len(names) > 200 {
		return fmt.Sprintf("there are %d %s, none of that name", len(names), kind)
	}
	if meant := nearest.Word(word, names); meant != "" {
		return fmt.Sprintf("did you mean %q?", meant)
	}
	return fmt.Sprintf("the %s are %s", kind, conjunction(names))
}

func (j *Job) roles(name role.Name) string {
	var names []string
	for _, n := range j.Names() {
		names = append(names, string(n))
	}
	return choices(string(name), "roles", names)
}

func (j *Job) references(r *Role, key string, names []role.Name, wrong tell) {
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", key, i)
		_, ok := j.Role(name)
		switch {
		case name == r.Name:
			wrong(at, "the role names itself", "leave it out")
		case !ok:
			wrong(at, fmt.Sprintf("there is no role %q", name), j.roles(name))
		case slices.Contains(names[:i], name):
			wrong(at, fmt.Sprintf("%q is named twice", name), "leave it out")
		}
	}
}

// portsUsed checks the ports that the role declares, and every ${port.NAME} in its texts.
func (r *Role) portsUsed(key string, wrong tell) {
	for _, p := range r.Ports {
		if p.Number != 0 && r.Workers > 1 && r.Placement.PerNode != 1 {
			wrong(key+".ports."+p.Name, fmt.Sprintf("one fixed port for %d workers", r.Workers), "want auto, or placement.per_node: 1")
		}
	}
	check := func(at, text string) {
		for _, ref := range portReferences(text) {
			switch {
			case !ref.closed:
				wrong(at, fmt.Sprintf("%q has no closing brace", shorten(text[ref.from:])), "want ${port.NAME}")
			case !r.hasPort(ref.name):
				wrong(at, fmt.Sprintf("${port.%s} names no port of the role", ref.name), r.portNames(ref.name))
			}
		}
	}
	for _, p := range r.programs() {
		for i, word := range p.words {
			check(fmt.Sprintf("%s.%s[%d]", key, p.key, i), word)
		}
	}
	for name, value := range r.Env {
		check(key+".env."+name, value)
	}
}

// progress checks that what is given is what the source of steps needs, no less and no more.
func (r *Role) progress(key string, wrong tell) {
	for _, one := range []struct {
		source      Source
		name, value string
	}{{FromPattern, "pattern", r.Progress.Pattern}, {FromFile, "file", r.Progress.File}} {
		switch is, given := r.Progress.Source == one.source, one.value != ""; {
		case is && !given:
			wrong(key+".source", fmt.Sprintf("there is no %s", one.name), fmt.Sprintf("say it with progress.%s", one.name))
		case given && !is:
			wrong(key+"."+one.name, fmt.Sprintf("steps come from %q, so this would not be looked at", r.Progress.Source), fmt.Sprintf("want source: %s, or leave it out", one.source))
		}
	}
}

// leastLog is the least that can be kept of a log's newest, and leastPart how large each of its files must be, in bytes.
const (
	leastLog  = 64 << 10
	leastPart = 4 << 10
)

func (r *Role) logs(key string, wrong tell) {
	switch l := r.Logs; {
	case l.MaxSize > 0 && l.MaxSize < leastLog:
		wrong(key+".max_size", fmt.Sprintf("%d bytes hold too little", l.MaxSize), "want 64Ki or more, or 0 for no limit")
	case l.MaxSize > 0 && l.MaxSize/int64(l.Keep) < leastPart:
		wrong(key+".keep", fmt.Sprintf("%d bytes in %d files leave less than 4Ki for each", l.MaxSize, l.Keep), "want fewer files, or a larger max_size")
	}
}

func (r *Role) hasPort(name string) bool {
	return slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name == name })
}

func (r *Role) portNames(name string) string {
	if len(r.Ports) == 0 {
		return fmt.Sprintf("declare it with ports: {%s: auto}", name)
	}
	var names []string
	for _, p := range r.Ports {
		names = append(names, p.Name)
	}
	return choices(name, "ports", names)
}

func (r *Role) probe(key string, p *Probe, wrong tell) {
	if p == nil {
		return
	}
	kinds := 0
	for _, there := range []bool{p.HTTP != nil, p.TCP != nil, p.Exec != nil, p.Notify} {
		if there {
			kinds++
		}
	}
	if kinds != 1 {
		wrong(key, fmt.Sprintf("%d kinds of probe", kinds), "want exactly one of http, tcp, exec and notify: true")
	}
	port := func(at, name string) {
		if name != "" && !r.hasPort(name) {
			wrong(at, fmt.Sprintf("the role has no port %q", name), r.portNames(name))
		}
	}
	if p.HTTP != nil {
		port(key+".http.port", p.HTTP.Port)
	}
	if p.TCP != nil {
		port(key+".tcp.port", p.TCP.Port)
	}
}

// groups checks that roles which share bundles agree on where these lie.
func (j *Job) groups(wrong tell) {
	first := map[string]*Role{}
	for i := range j.Roles {
		r := &j.Roles[i]
		if r.Placement.Group == "" {
			continue
		}
		of, ok := first[r.Placement.Group]
		if !ok {
			first[r.Placement.Group] = r
			continue
		}
		if of.Placement != r.Placement {
			wrong("roles."+string(r.Name)+".placement", fmt.Sprintf("not the placement that %s has for the same group %q", of.Name, r.Placement.Group),
				"want the same strategy and per_node for all roles of a group")
		}
	}
}

// cycles finds roles that wait for each other.
func (j *Job) cycles(wrong tell) {
	done := map[role.Name]bool{}
	var chain []string
	var visit func(name role.Name)
	visit = func(name role.Name) {
		if at := slices.Index(chain, string(name)); at >= 0 {
			loop := append(slices.Clone(chain[at:]), string(name))
			if len(loop) > 2 { // a role that names itself is told elsewhere
				wrong("roles."+loop[len(loop)-2]+".depends_on", "a cycle: "+strings.Join(loop, " waits for "), "leave one of them out")
			}
			return
		}
		r, ok := j.Role(name)
		if !ok || done[name] {
			return
		}
		chain = append(chain, string(name))
		for _, dep := range r.DependsOn {
			visit(dep)
		}
		chain = chain[:len(chain)-1]
		done[name] = true
	}
	for _, name := range j.Names() {
		visit(name)
	}
}
