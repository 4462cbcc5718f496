package controller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/settings"
)

// options are the defaults over a job file.
func options(t *testing.T, file string) *Options {
	t.Helper()
	j, err := job.Parse("test.yaml", []byte(file), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Options{Job: j, MaxGlobalRestart: 3, GlobalRestart: "keep", StartTimeout: 30 * time.Minute, CheckInterval: time.Second,
		HTTP: DefaultHTTP, LogFormat: "text", LogLevel: "info", Origins: map[string]settings.Origin{}}
}

const threeRoles = `
name: test
roles:
  actor: {command: ["true"]}
  critic: {command: ["true"], restart: {escalate_at: 5, also: [actor]}}
  reward: {command: ["true"], restart: {on_failure: stop}}
`

// shows: R3
func TestThePolicyInForceSaysWhereEachSettingCameFrom(t *testing.T) {
	o := options(t, threeRoles)
	o.UseHealthCheck, o.MaxGlobalRestart = true, 7
	o.Origins["use-health-check"] = settings.Origin{Source: settings.Flag}
	o.Origins["max-global-restart"] = settings.Origin{Source: settings.Environment}
	got := map[string]string{}
	for _, s := range PolicyOf(o).Settings {
		got[strings.TrimPrefix(string(s.Role)+"."+s.Name, ".")] = s.Value + " from " + s.Source
	}
	for name, want := range map[string]string{
		"use-health-check": "true from flag", "max-global-restart": "7 from environment", "no-progress-lives": "0 from default", "heartbeat-timeout": "learned from default",
		"actor.restart.on_failure": "global from default", "critic.restart.on_failure": "in_place from default", "reward.restart.on_failure": "stop from job",
		"critic.restart.escalate_at": "5 from job", "critic.restart.also": "[actor] from job", "reward.restart.escalate_at": "3 from default",
		"critic.restart.rules": "[] from default", "critic.restart.window": "the life of the job from default", "critic.restart.forgive_after": "never from default",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestARolesOwnRulesAndWindowsAreInForceAndSaid(t *testing.T) {
	o := options(t, `name: x
roles:
  critic: {command: ["true"], restart: {window: 6h, forgive_after: 30m, rules: [{exit_code: [3, 4], action: stop}, {cause: stuck, message: late, action: ignore}]}}
`)
	o.UseHealthCheck = true
	text := PrintPolicy(o)
	for _, want := range []string{
		"critic       what fits one of its rules (2) is done as that says; else a failure restarts it in place;",
		`[1: exit_code 3 or 4 -> stop; 2: cause stuck, message "late" -> ignore] job`, "6h0m0s", "30m0s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text does not say %q:\n%s", want, text)
		}
	}
}

func TestThePolicyIsPrintedInWordsForEachRole(t *testing.T) {
	o := options(t, threeRoles)
	o.UseHealthCheck = true
	text := PrintPolicy(o)
	for _, want := range []string{
		"a failure restarts every role; after 3 such restarts the next one needed stops the job",
		"a failure restarts it in place, with actor; restart 5 since the last global one is global; from the second in a row it waits 1s, doubling up to 1m0s",
		"reward       a failure stops the job\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text does not say %q:\n%s", want, text)
		}
	}
	o.UseHealthCheck = false
	if text := PrintPolicy(o); strings.Count(text, "health check is off") != 3 {
		t.Errorf("with health check off the text is:\n%s", text)
	}
}

func TestEveryMistakeInTheOptionsIsSaid(t *testing.T) {
	o := options(t, threeRoles)
	if err := o.Check(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	o.MaxGlobalRestart, o.NoProgressLives, o.GlobalRestart, o.HeartbeatTimeout, o.StartTimeout = -1, -1, "half", time.Second, 0
	o.CheckInterval, o.ControllerGrace, o.FakeGPUs, o.TLSCert, o.LogLevel, o.HTTP = 0, -1, -1, "cert.pem", "loud", "0.0.0.0:8000"
	err := o.Check()
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, want := range []string{"--max-global-restart -1", "--no-progress-lives -1", `--global-restart "half"`, "--heartbeat-timeout 1s: want 5s or more",
		"--start-timeout 0s", "--check-interval 0s", "--controller-grace -1ns", "--fake-gpus -1", "--tls-cert and --tls-key", "loud", "--http 0.0.0.0:8000"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestEndingsRunOnceNewestFirstAndAFailedOneDoesNotKeepTheOthers(t *testing.T) {
	var ran []string
	var said bytes.Buffer
	e := new(endings)
	add := func(name string, err error) {
		e.add(name, func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Errorf("%s is not bounded", name)
			}
			ran = append(ran, name)
			return err
		})
	}
	wrong := errors.New("it hangs on")
	add("lock", nil)
	add("services", wrong)
	add("http", nil)
	log := slog.New(slog.NewTextHandler(&said, nil))
	err := e.run(log)
	if !errors.Is(err, wrong) || !strings.Contains(err.Error(), "end services") || !strings.Contains(said.String(), "end services") {
		t.Errorf("the error says %v, the log %s", err, said.String())
	}
	if err := e.run(log); err != nil {
		t.Errorf("a second end says %v", err)
	}
	if got := strings.Join(ran, " "); got != "http services lock" {
		t.Errorf("ended in the order %s", got)
	}
}
