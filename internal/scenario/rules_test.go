package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"vigil/internal/job"
	"vigil/internal/role"
)

// readRule reads a role's own rule as a story writes it: ACTION,KEY:VALUE,... such as
// stop,exit_code:3. Values have no blanks.
func readRule(text string) (job.RoleRule, error) {
	words := strings.Split(text, ",")
	rule := job.RoleRule{Action: role.Action(words[0])}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, ":")
		switch key {
		case "cause":
			rule.Causes = append(rule.Causes, role.Cause(value))
		case "exit_code":
			n, err := strconv.Atoi(value)
			if err != nil {
				return rule, err
			}
			rule.Exits = append(rule.Exits, n)
		case "signal":
			rule.Signals = append(rule.Signals, value)
		case "message":
			rule.Message = value
		default:
			return rule, fmt.Errorf("no condition %q of a rule", key)
		}
	}
	return rule, nil
}
