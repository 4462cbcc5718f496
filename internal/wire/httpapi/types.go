package httpapi

import (
	"errors"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// ErrConflict says that what was asked for cannot be begun in the state that things are in: 409. Wrap
// it with why.
var ErrConflict = errors.New("not now")

// Job is the job as a whole.
type Job struct {
	Name              string     `json:"name" doc:"The job's name, from the job file." example:"tiny-rl"`
	UID               string     `json:"uid" doc:"This run of the job: NAME-8hex." example:"tiny-rl-1f0c93ab"`
	State             string     `json:"state" doc:"What the job is doing." enum:"starting,running,repairing,stopping,ended"`
	Why               string     `json:"why" doc:"Why it is in that state; may be empty."`
	LeadRole          role.Name  `json:"lead_role" doc:"The role whose step is the job's."`
	CurrentStep       int64      `json:"current_step" doc:"The lead role's step."`
	HealthCheck       bool       `json:"health_check" doc:"Whether failures are repaired; without, any failure stops the job."`
	GlobalRestarts    int        `json:"global_restarts" doc:"How many global restarts were spent."`
	MaxGlobalRestarts int        `json:"max_global_restarts" doc:"How many may be spent."`
	Started           time.Time  `json:"started" doc:"When this run began."`
	Ended             *time.Time `json:"ended" doc:"When it ended; null while it runs." nullable:"true"`
	ExitCode          *int       `json:"exit_code" doc:"The controller's exit code, once it is settled; else null." nullable:"true"`
	PID               int        `json:"pid" doc:"The controller's process."`
	Epoch             uint64     `json:"epoch" doc:"Raised at each start of a controller on this run."`
	Version           string     `json:"version" doc:"The controller's version."`
	Obligations       []string   `json:"obligations" nullable:"false" doc:"What could not be cleaned up yet and is tried again."`
}

// Role is one role: seed 2's health record first, then where it stands.
type Role struct {
	Name          role.Name  `json:"name" doc:"The role's name." example:"critic"`
	Healthy       bool       `json:"healthy" doc:"No failure of it is open."`
	Error         *string    `json:"error" doc:"The failure that is open, in words; null when healthy." nullable:"true"`
	LastHeartbeat time.Time  `json:"last_heartbeat" doc:"When it last spoke; before its first word, when it began."`
	CurrentStep   int64      `json:"current_step" doc:"The least step over the ranks that have spoken in this life; before that, the step it was given."`
	TaskRunning   bool       `json:"task_running" doc:"Its workers run."`
	RestartCount  int        `json:"restart_count" doc:"In-place restarts spent; a global restart forgives them."`
	Incarnation   int        `json:"incarnation" doc:"Which life of the role this is, from 1; 0 before the first."`
	State         role.State `json:"state" doc:"What the role is doing." enum:"pending,starting,running,repairing,back_off,stopped,finished,failed"`
	Why           string     `json:"why" doc:"Why it is in that state; may be empty."`
	Watched       string     `json:"watched" doc:"In words, what would show that it is unwell, and where its steps come from." example:"exit and heartbeats, learned limit 10m0s (5 times a gap of 2m0s at 14:03:05, 12 gaps ago)"`
	GivenStep     int64      `json:"given_step" doc:"The step that this life was given."`
	StepOff       string     `json:"step_off" doc:"In words, how a rank of this life began off that step; empty if none did." example:"rank 1: given step 24, began at 3"`
	Workers       []Worker   `json:"workers" nullable:"false" doc:"By rank."`
}

// Worker is one worker as its role shows it.
type Worker struct {
	Rank                int              `json:"rank" doc:"From 0."`
	PID                 int              `json:"pid" doc:"Its process; 0 when there is none."`
	Step                *int64           `json:"step" doc:"Its newest step in this life; null before it has told one." nullable:"true"`
	Life                string           `json:"life" doc:"UID/ROLE/INC/RANK/ATTEMPT." example:"tiny-rl-1f0c93ab/critic/1/0/1"`
	State               role.WorkerState `json:"state" doc:"What it is doing." enum:"starting,ready,paused,quarantined,down,finished"`
	HeartbeatAgeSeconds *float64         `json:"heartbeat_age_seconds" doc:"Since it last spoke in this life, in seconds; null before." nullable:"true"`
	Phases              []Phase          `json:"phases" nullable:"false" doc:"That it has entered and not left, outermost first."`
}

// Phase is an open phase of a worker.
type Phase struct {
	Name         string   `json:"name" doc:"As the worker calls it." example:"checkpoint"`
	AgeSeconds   float64  `json:"age_seconds" doc:"Since it was entered, in seconds."`
	LimitSeconds *float64 `json:"limit_seconds" doc:"How long it may be open, in seconds; null while no limit is known." nullable:"true"`
}

// Peer is one worker as others reach it.
type Peer struct {
	Rank    int              `json:"rank" doc:"From 0."`
	Address string           `json:"address" doc:"The host that its ports are on." example:"127.0.0.1"`
	Ports   map[string]int   `json:"ports" doc:"Its leased ports by name."`
	State   role.WorkerState `json:"state" doc:"What it is doing." enum:"starting,ready,paused,quarantined,down,finished"`
	Life    string           `json:"life" doc:"UID/ROLE/INC/RANK/ATTEMPT."`
}

// Incident is one failure with everything that followed. Times that were not reached are null.
type Incident struct {
	ID          string        `json:"id" doc:"Names the incident within the run." example:"7"`
	Role        role.Name     `json:"role" doc:"Who failed."`
	Rank        int           `json:"rank" doc:"Which worker failed; -1 for the whole role."`
	Incarnation int           `json:"incarnation" doc:"The life that failed."`
	Cause       role.Cause    `json:"cause" doc:"What kind of failure it was." enum:"reported,exited,silent,unreachable,no_start,not_ready,stuck,hardware,preempted,port_taken,operator,unrepaired"`
	Detail      string        `json:"detail" doc:"The failure in words."`
	Log         string        `json:"log,omitempty" doc:"Path of the log that tells more."`
	Collective  string        `json:"collective,omitempty" doc:"Which collective does not end and which rank has not entered it, where the dumps of NCCL's flight recorder say so; told once the workers have been ended." example:"rank 1 of the world has not entered all_reduce #42 (nccl:all_reduce, process group default_pg); ranks 0, 2, 3 wait in it since 14 s"`
	Action      role.Action   `json:"action,omitempty" doc:"What was decided." enum:"in_place,global,stop"`
	Rule        string        `json:"rule,omitempty" doc:"The policy line that settled it." example:"role_can_stay"`
	Why         string        `json:"why,omitempty" doc:"The decision in words."`
	Roles       []role.Name   `json:"roles" nullable:"false" doc:"The roles that the decision touches."`
	Open        bool          `json:"open" doc:"Not over yet."`
	Detected    time.Time     `json:"detected" doc:"When the failure was found."`
	Decided     *time.Time    `json:"decided" nullable:"true" doc:"When the decision was taken."`
	Stopped     *time.Time    `json:"stopped" nullable:"true" doc:"When the old life had been stopped."`
	Clean       *time.Time    `json:"clean" nullable:"true" doc:"When nothing of it was left (proved)."`
	Started     *time.Time    `json:"started" nullable:"true" doc:"When the new workers ran."`
	FirstStep   *time.Time    `json:"first_step" nullable:"true" doc:"When the new life first spoke."`
	Held        []string      `json:"held,omitempty" nullable:"false" doc:"Who held on when it was stopped."`
	Error       string        `json:"error,omitempty" doc:"Why the repair did not succeed."`
	Evidence    []string      `json:"evidence,omitempty" nullable:"false" doc:"Paths of what was kept of the workers before they were ended; only where one incident is asked for."`
	Events      []event.Event `json:"events,omitempty" nullable:"false" doc:"What happened, oldest first; only where one incident is asked for."`
}

// PlacementGroup is the resources reserved for one role, or for several that share them.
type PlacementGroup struct {
	Name     string      `json:"name" doc:"The group's name; that of its role unless it is shared."`
	Roles    []role.Name `json:"roles" nullable:"false" doc:"Who uses it."`
	Strategy string      `json:"strategy" doc:"How its bundles are spread over nodes." enum:"PACK,SPREAD,STRICT_PACK,STRICT_SPREAD"`
	State    string      `json:"state" doc:"Where it stands." enum:"PENDING,RESERVED,PARTIAL,INFEASIBLE,RELEASED"`
	Why      string      `json:"why,omitempty" doc:"What is lacking."`
	Live     int         `json:"live" doc:"Bundles whose node and devices are well."`
	Needed   int         `json:"needed" doc:"Bundles that it should have."`
	Bundles  []Bundle    `json:"bundles" nullable:"false" doc:"By rank."`
}

// Bundle is one worker's share.
type Bundle struct {
	Rank    int      `json:"rank" doc:"The rank that it serves, of each of the group's roles."`
	Node    string   `json:"node" doc:"Where it lies; empty while it is not placed."`
	Devices []string `json:"devices" nullable:"false" doc:"Its devices, in order."`
	CPUs    float64  `json:"cpus" doc:"CPUs reserved."`
	Memory  int64    `json:"memory" doc:"Bytes reserved."`
	Well    bool     `json:"well" doc:"It is placed, and its node and devices are well."`
}

// Policy is what is in force, line by line.
type Policy struct {
	Settings []Setting `json:"settings" nullable:"false" doc:"Every setting that decides about restarts."`
}

// Setting is one line of the policy and where it came from.
type Setting struct {
	Role   role.Name `json:"role,omitempty" doc:"Whose setting it is; absent for the whole job's."`
	Name   string    `json:"name" doc:"What is set, by its name in the job file or its flag." example:"restart.escalate_at"`
	Value  string    `json:"value" doc:"What it is set to, as it would be written in the job file." example:"3"`
	Source string    `json:"source" doc:"Where it came from." enum:"default,job,environment,flag"`
}

// NoExitCode stands in a question where the process has not ended with a code.
const NoExitCode = -1

// ErrQuestion says that a question makes no sense for this job: 422. Wrap it with why.
var ErrQuestion = errors.New("what is asked about cannot happen")

// Question is a failure that is asked about.
type Question struct {
	Role     role.Name  `query:"role" required:"true" doc:"Which role fails." example:"critic"`
	Cause    role.Cause `query:"cause" required:"true" doc:"What kind of failure it is, as in an incident." example:"exited"`
	Rank     int        `query:"rank" doc:"Which of its workers."`
	ExitCode int        `query:"exit_code" default:"-1" doc:"The process ended with this code; -1: it did not."`
	Signal   string     `query:"signal" doc:"The process was killed by this signal." example:"SEGV"`
	Message  string     `query:"message" doc:"What the failure says."`
}

// Forecast answers /api/v1/policy/explain: what would be done now, line by line. Nothing is done.
type Forecast struct {
	Role              role.Name    `json:"role" doc:"Who would fail."`
	Rank              int          `json:"rank" doc:"Which worker."`
	Cause             role.Cause   `json:"cause" doc:"What kind of failure."`
	Detail            string       `json:"detail" doc:"The failure in words; may be empty."`
	GlobalRestarts    int          `json:"global_restarts" doc:"How many global restarts are spent before it."`
	MaxGlobalRestarts int          `json:"max_global_restarts" doc:"How many may be spent."`
	RestartCount      int          `json:"restart_count" doc:"How many restarts in place the role has spent before it."`
	Lines             []PolicyLine `json:"lines" nullable:"false" doc:"The lines of the decision table, from its top to the one that settles it."`
	Action            role.Action  `json:"action" doc:"What would be done." enum:"in_place,global,stop,ignore"`
	Roles             []role.Name  `json:"roles" nullable:"false" doc:"The roles that would be touched."`
	Alone             bool         `json:"alone" doc:"Only that worker would be restarted."`
	ExitCode          *int         `json:"exit_code" doc:"What the controller would exit with, where the job would be stopped; else null." nullable:"true"`
	WaitSeconds       float64      `json:"wait_seconds" doc:"How long, at most, the restart would wait for the role's back-off."`
}

// PolicyLine is one line of the decision table, held against a failure.
type PolicyLine struct {
	Rule string `json:"rule" doc:"The line." example:"role_can_stay"`
	Fits bool   `json:"fits" doc:"It settles what is done."`
	Why  string `json:"why" doc:"Why it does, or does not."`
}

// Operation answers a request that goes on after the answer.
type Operation struct {
	Operation string `json:"operation" doc:"Names the operation in the events that it brings forth."`
}

// RoleList answers /api/v1/roles.
type RoleList struct {
	Roles []Role `json:"roles" nullable:"false" doc:"In the order of the job file."`
}

// PeerList answers /api/v1/roles/{role}/workers.
type PeerList struct {
	Workers []Peer `json:"workers" nullable:"false" doc:"By rank."`
}

// IncidentList answers /api/v1/incidents.
type IncidentList struct {
	Incidents []Incident `json:"incidents" nullable:"false" doc:"Newest first."`
}

// Goodput answers /api/v1/goodput: what the job's time went into.
type Goodput struct {
	Since             time.Time     `json:"since" doc:"When the run began."`
	Seconds           float64       `json:"seconds" doc:"How long it runs, or ran."`
	ProductiveSeconds float64       `json:"productive_seconds" doc:"Of these, while every role that has not finished got on."`
	StartSeconds      float64       `json:"start_seconds" doc:"Until that was so for the first time."`
	Ratio             float64       `json:"goodput" doc:"The productive part, from 0 to 1."`
	Lost              []Lost        `json:"lost" nullable:"false" doc:"What failures and stops have cost, most first."`
	Roles             []RoleGoodput `json:"roles" nullable:"false" doc:"In the order of the job file."`
}

// Lost is the time that the failures of one cause have cost the job.
type Lost struct {
	Cause     role.Cause `json:"cause" doc:"What kind of failure; empty for planned stops."`
	Incidents int        `json:"incidents" doc:"How many."`
	Seconds   float64    `json:"seconds" doc:"From the first sign of each to the first step after it, together."`
}

// RoleGoodput is one role's part.
type RoleGoodput struct {
	Name              role.Name `json:"name" doc:"The role's name."`
	ProductiveSeconds float64   `json:"productive_seconds" doc:"While it got on."`
	Lives             int       `json:"lives" doc:"How often its workers were begun."`
	StepsRedone       int64     `json:"steps_redone" doc:"Steps done again because a life began below where the one before was."`
}

// GroupList answers /api/v1/placement_groups.
type GroupList struct {
	Groups []PlacementGroup `json:"placement_groups" nullable:"false" doc:"By name."`
}

// EventList answers /api/v1/events as JSON.
type EventList struct {
	Events []event.Event `json:"events" nullable:"false" doc:"Oldest first."`
	Next   uint64        `json:"next" doc:"The cursor for what comes after these."`
	Missed uint64        `json:"missed" doc:"How many events after the cursor are no longer kept."`
}
