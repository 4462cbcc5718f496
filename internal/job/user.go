package job

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// User is whom workers run as.
type User struct {
	UID, GID int
	Groups   []int // supplementary ones
	Name     string
	Home     string
}

// LookupUser finds the user of a role: NAME, UID, or either with :GROUP, which then is its only group. The error says what
// the machine does not know, or that we are not root, who alone can run workers as somebody else.
func LookupUser(text string) (User, error) {
	if us := os.Geteuid(); us != 0 {
		return User{}, fmt.Errorf("user %q: only root can run workers as another user, we are user %d: leave it out, or start the controller as root", text, us)
	}
	name, group, grouped := strings.Cut(text, ":")
	known, err := user.Lookup(name)
	if err != nil {
		known, err = user.LookupId(name)
	}
	uid, number := strconv.ParseUint(name, 10, 32)
	switch {
	case err == nil:
	case number != nil:
		return User{}, fmt.Errorf("user %q: this machine knows no user %q", text, name)
	case !grouped:
		return User{}, fmt.Errorf("user %q: this machine knows no user %q: say the group too, as %s:GID", text, name, name)
	default:
		known = &user.User{Uid: strconv.FormatUint(uid, 10), Username: name, HomeDir: "/"}
	}
	u := User{Name: known.Username, Home: known.HomeDir}
	if u.UID, err = strconv.Atoi(known.Uid); err != nil {
		return User{}, fmt.Errorf("user %q: its number is %q", text, known.Uid)
	}
	if grouped {
		u.GID, err = lookupGroup(group)
		u.Groups = []int{u.GID}
		if err != nil {
			return User{}, fmt.Errorf("user %q: %w", text, err)
		}
		return u, nil
	}
	if u.GID, err = strconv.Atoi(known.Gid); err != nil {
		return User{}, fmt.Errorf("user %q: the number of its group is %q", text, known.Gid)
	}
	groups, err := known.GroupIds()
	if err != nil {
		return User{}, fmt.Errorf("user %q: find its groups: %w", text, err)
	}
	for _, g := range groups {
		if id, err := strconv.Atoi(g); err == nil {
			u.Groups = append(u.Groups, id)
		}
	}
	return u, nil
}

func lookupGroup(text string) (int, error) {
	g, err := user.LookupGroup(text)
	if err == nil {
		return strconv.Atoi(g.Gid)
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("this machine knows no group %q", text)
	}
	return int(id), nil
}
