package controller

import "testing"

// What a person ends begins again from the start; what a scheduler ends goes on.
// shows: FAULT-G2
func TestWhichExitsCloseARun(t *testing.T) {
	for _, tt := range []struct {
		what string
		o    Options
		open []int // of the exits below, those that leave the run open
	}{
		{"a job file", Options{}, []int{129, 143, 137}},
		{"a job file that is requeued", Options{Requeue: true}, []int{129, 143, 137}},
		{"a script", Options{Script: true}, nil},
		{"a script that is requeued", Options{Script: true, Requeue: true}, []int{143}},
	} {
		for _, exit := range []int{0, 1, 93, 129, 130, 137, 143} {
			closes := true
			for _, open := range tt.open {
				closes = closes && exit != open
			}
			if tt.o.closes(exit) != closes {
				t.Errorf("%s, exit %d: closes %t", tt.what, exit, !closes)
			}
		}
	}
}
