package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on what is read. The YAML parser takes time that grows with the square of the number of
// tokens and a stack that grows with the nesting; a job file of 10,000 roles does not come near.
const (
	maxBytes   = 1 << 20
	maxTokens  = 50_000
	maxNesting = 64
	maxAnchors = 1_000 // anchors, aliases, tags and complex keys together
	maxEntries = 50_000
)

// form is what a node of the file is.
type form int

const (
	formNothing form = iota
	formText
	formNumber
	formTruth // true or false
	formList
	formMapping
	formBroken // a problem has been told already
)

// node is a value of the file, with aliases resolved and merges done.
type node struct {
	form    form
	text    string // of a scalar: as it is written, without quotes
	place   place
	items   []*node
	entries []entry
}

type entry struct {
	key   string
	place place
	value *node
}

// say names a value in an error text.
func (n *node) say() string {
	switch n.form {
	case formText:
		return fmt.Sprintf("the text %q", shorten(n.text))
	case formNumber:
		return "the number " + shorten(n.text)
	case formTruth:
		return n.text
	case formList:
		if len(n.items) == 0 {
			return "an empty list"
		}
		return "a list"
	case formMapping:
		return "a mapping"
	default:
		return "nothing"
	}
}

func shorten(s string) string {
	if utf8.RuneCountInString(s) <= 40 {
		return s
	}
	return string([]rune(s)[:40]) + "..."
}

// plant turns the text of a file into its tree. A nil tree comes with problems.
func plant(src *source, text string) (*node, []Problem) {
	g := &gardener{src: src, anchors: map[string]*node{}}
	if !g.readable(text) {
		return nil, g.problems
	}
	tokens := lexer.Tokenize(text)
	if !g.bounded(tokens) {
		return nil, g.problems
	}
	file, err := parseTokens(tokens)
	if err != nil {
		g.syntax(err)
		return nil, g.problems
	}
	docs := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	switch {
	case len(docs) == 0:
		g.wrong(place{1, 1}, "the file is empty", `it needs at least "name" and "roles"`)
		return nil, g.problems
	case len(docs) > 1:
		g.wrong(placeOf(docs[1].Body), "a second document", "a job file is one document, without ---")
	}
	return g.grow(docs[0].Body), g.problems
}

// parseTokens turns a panic of the YAML parser into an error: the file is not ours, and neither is it.
func parseTokens(tokens token.Tokens) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, fmt.Errorf("not readable as YAML (%v)", r)
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// gardener grows a tree out of a parsed file.
type gardener struct {
	src      *source
	problems []Problem
	anchors  map[string]*node // nil while the anchored value itself is being read
	entries  int              // of all mappings so far, merged ones included
}

func (g *gardener) wrong(at place, what, fix string) {
	if len(g.problems) < maxProblems {
		g.problems = append(g.problems, g.src.problem(at, "", what, fix))
	}
}

// readable checks that the file is text at all.
func (g *gardener) readable(text string) bool {
	for i, line := range strings.Split(text, "\n") {
		column := 1
		for j, r := range line {
			if r == utf8.RuneError && !strings.HasPrefix(line[j:], "\uFFFD") {
				g.wrong(place{i + 1, column}, "a byte that is not UTF-8", "save the file as UTF-8")
				return false
			}
			if unicode.IsControl(r) && r != '\t' {
				g.wrong(place{i + 1, column}, fmt.Sprintf("the control character %U", r), `write it as an escape in double quotes, such as "\x1b"`)
				return false
			}
			column++
		}
	}
	return true
}

// bounded checks what would cost the parser too much time or stack.
func (g *gardener) bounded(tokens token.Tokens) bool {
	if len(tokens) > maxTokens {
		at := tokens[maxTokens].Position
		g.wrong(place{at.Line, at.Column}, fmt.Sprintf("more than %d YAML tokens", maxTokens), "split the job, or generate less")
		return false
	}
	flow, run, marks := 0, 0, 0
	for _, t := range tokens {
		inRun := false
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType:
			run++
			inRun = true
		case token.AnchorType, token.AliasType, token.TagType, token.MappingKeyType:
			marks++
		}
		if !inRun {
			run = 0
		}
		at := place{t.Position.Line, t.Position.Column}
		if flow > maxNesting || run > maxNesting || t.Position.IndentNum > maxNesting*8 {
			g.wrong(at, fmt.Sprintf("nested deeper than %d levels", maxNesting), "")
			return false
		}
		if marks > maxAnchors {
			g.wrong(at, fmt.Sprintf("more than %d anchors, aliases and tags", maxAnchors), "")
			return false
		}
	}
	return true
}

func (g *gardener) syntax(err error) {
	var bad *yaml.SyntaxError
	if errors.As(err, &bad) && bad.Token != nil && bad.Token.Position != nil {
		g.wrong(place{bad.Token.Position.Line, bad.Token.Position.Column}, "not YAML: "+bad.Message, "")
		return
	}
	g.wrong(place{1, 1}, "not YAML: "+strings.ReplaceAll(err.Error(), "\n", " "), "")
}

func placeOf(n ast.Node) place {
	if n == nil {
		return place{1, 1}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return placeOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(n.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return place{t.Position.Line, t.Position.Column}
	}
	return place{1, 1}
}

// grow returns the tree of one value; where it cannot, a broken node, with a problem told.
func (g *gardener) grow(from ast.Node) *node {
	n := &node{place: placeOf(from)}
	switch from := from.(type) {
	case *ast.StringNode:
		n.form, n.text = formText, from.Value
	case *ast.LiteralNode:
		n.form, n.text = formText, from.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.form, n.text = formNumber, from.GetToken().Value
	case *ast.BoolNode:
		n.form, n.text = formTruth, from.GetToken().Value
	case *ast.NullNode:
	case *ast.SequenceNode:
		n.form = formList
		for _, v := range from.Values {
			n.items = append(n.items, g.grow(v))
		}
	case *ast.MappingNode:
		g.mapping(n, from.Values)
	case *ast.MappingValueNode:
		g.mapping(n, []*ast.MappingValueNode{from})
	case *ast.AnchorNode:
		name := from.Name.GetToken().Value
		g.anchors[name] = nil
		n = g.grow(from.Value)
		g.anchors[name] = n
	case *ast.AliasNode:
		return g.alias(n, from)
	case *ast.TagNode:
		n.form = formBroken
		g.wrong(n.place, "the tag "+from.GetToken().Value, "a job file has no tags; leave it out")
	case nil: // an anchor with nothing after it
	default:
		n.form = formBroken
		g.wrong(n.place, "a kind of YAML value that a job file does not have", "")
	}
	return n
}

func (g *gardener) alias(n *node, from *ast.AliasNode) *node {
	n.form = formBroken
	name := from.Value.GetToken().Value
	switch found, ok := g.anchors[name]; {
	case !ok:
		g.wrong(n.place, fmt.Sprintf("the alias *%s has no anchor before it", name), fmt.Sprintf("write &%s in front of the value that it stands for", name))
	case found == nil:
		g.wrong(n.place, fmt.Sprintf("the alias *%s stands inside its own anchor", name), "")
	default:
		return found
	}
	return n
}

func (g *gardener) mapping(n *node, values []*ast.MappingValueNode) {
	n.form = formMapping
	seen := map[string]place{}
	var merged []entry
	for _, v := range values {
		at := placeOf(v.Key)
		if v.Key.IsMergeKey() {
			merged = append(merged, g.merge(v)...)
			continue
		}
		key, ok := g.key(v.Key)
		if !ok {
			continue
		}
		value := g.grow(v.Value)
		if first, twice := seen[key]; twice {
			g.wrong(at, fmt.Sprintf("the key %q stands here a second time", key), fmt.Sprintf("it stands first in line %d", first.line))
			continue
		}
		seen[key] = at
		n.entries = append(n.entries, entry{key, at, value})
	}
	for _, e := range merged { // a key of the mapping itself beats a merged one, an earlier merged one a later
		if _, ok := seen[e.key]; !ok {
			seen[e.key] = e.place
			n.entries = append(n.entries, e)
		}
	}
	if g.entries += len(n.entries); g.entries > maxEntries {
		if g.entries-len(n.entries) <= maxEntries {
			g.wrong(n.place, fmt.Sprintf("merges make more than %d keys of this file", maxEntries), "")
		}
		n.entries = nil
	}
}

func (g *gardener) key(from ast.MapKeyNode) (string, bool) {
	switch from := from.(type) {
	case *ast.StringNode:
		return from.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return from.GetToken().Value, true
	}
	g.wrong(placeOf(from), "a key that is not plain text", `write "key: value"`)
	return "", false
}

// merge returns the entries that "<<: *name" or "<<: [*a, *b]" brings in.
func (g *gardener) merge(v *ast.MappingValueNode) []entry {
	n := g.grow(v.Value)
	from := []*node{n}
	if n.form == formList {
		from = n.items
	}
	var entries []entry
	for _, m := range from {
		if m.form != formMapping {
			if m.form != formBroken {
				g.wrong(placeOf(v.Key), "<< merges "+m.say(), "want the alias of a mapping, such as <<: *defaults")
			}
			continue
		}
		if len(entries) > maxEntries {
			break
		}
		entries = append(entries, m.entries...)
	}
	return entries
}
