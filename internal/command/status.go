package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"vigil/internal/controller"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

// status is what the status command shows, and prints as JSON.
type status struct {
	Job   httpapi.Job     `json:"job"`
	Roles []httpapi.Role  `json:"roles"`
	Good  httpapi.Goodput `json:"goodput"`
}

// statusCommand asks a running controller how its job stands.
func (p *program) statusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "status", Short: "Show how a running job stands: every role, rank, step, heartbeat, life, and why", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, tokenFile := settings.Peek(cmd.Flags(), p.environ, "http"), settings.Peek(cmd.Flags(), p.environ, "token-file")
			if output != "" && output != "json" {
				return usage(fmt.Errorf("-o %s: want json", output))
			}
			s, err := ask(cmd.Context(), addr, tokenFile)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(p.stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(s)
			}
			return s.print(p.stdout)
		},
	}
	cmd.Flags().String("http", controller.DefaultHTTP, "the controller's HTTP address, HOST:PORT or URL")
	cmd.Flags().String("token-file", "", "file with the bearer token")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for the machine-readable form")
	return cmd
}

// ask gets the status over HTTP.
func ask(ctx context.Context, addr, tokenFile string) (status, error) {
	var s status
	var list httpapi.RoleList
	err := askAll(ctx, addr, tokenFile, map[string]any{"/api/v1/job": &s.Job, "/api/v1/roles": &list, "/api/v1/goodput": &s.Good})
	s.Roles = list.Roles
	return s, err
}

// askAll gets several documents of one controller.
func askAll(ctx context.Context, addr, tokenFile string, docs map[string]any) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	base, token, err := target(addr, tokenFile)
	if err != nil {
		return err
	}
	for path, into := range docs {
		body, err := call(ctx, http.MethodGet, base+path, token, "")
		if err == nil {
			err = json.Unmarshal(body, into)
		}
		if err != nil {
			return fmt.Errorf("ask the controller at %s: %w", base, err)
		}
	}
	return nil
}

// target is a controller's base URL, and the token that it asks for; empty: none.
func target(addr, tokenFile string) (base, token string, err error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	if tokenFile != "" {
		if token, err = controller.ReadToken(tokenFile); err != nil {
			return "", "", usage(err)
		}
	}
	return addr, token, nil
}

// answerError is an answer that is not the document asked for.
type answerError struct {
	status int
	line   string
	body   []byte
}

func (e *answerError) Error() string {
	var p roleapi.Problem
	if json.Unmarshal(e.body, &p) == nil && p.Detail != "" {
		return p.Detail
	}
	return e.line + ": " + strings.TrimSpace(string(e.body))
}

// call sends one request and returns the document that answers it.
func call(ctx context.Context, method, url, token, text string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode/100 != 2 {
		err = &answerError{res.StatusCode, res.Status, body}
	}
	return body, err
}

// print writes the status for people.
func (s status) print(w io.Writer) error {
	j := s.Job
	fmt.Fprintf(w, "job %s  %s", j.UID, j.State)
	if j.Why != "" {
		fmt.Fprintf(w, " (%s)", j.Why)
	}
	check := "health check on"
	if !j.HealthCheck {
		check = "health check off: a failure stops the job"
	}
	fmt.Fprintf(w, "\nstep %d of %s  up %s  goodput %.1f %%  global restarts %d of %d  %s\n\n",
		j.CurrentStep, j.LeadRole, time.Since(j.Started).Round(time.Second), 100*s.Good.Ratio, j.GlobalRestarts, j.MaxGlobalRestarts, check)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ROLE\tRANK\tSTATE\tSTEP\tHEARTBEAT\tLIFE\tRESTARTS\tPID\tWHY")
	for _, r := range s.Roles {
		health := string(r.State)
		if !r.Healthy {
			health += " (unhealthy)"
		}
		fmt.Fprintf(t, "%s\t\t%s\t%d\t%s ago\t%d\t%d\t\t%s\n", r.Name, health, r.CurrentStep, time.Since(r.LastHeartbeat).Round(100*time.Millisecond), r.Incarnation, r.RestartCount, r.Why)
		for _, k := range r.Workers {
			step, age := "-", "none yet"
			if k.Step != nil {
				step = fmt.Sprint(*k.Step)
			}
			if k.HeartbeatAgeSeconds != nil {
				age = fmt.Sprintf("%.1fs ago", *k.HeartbeatAgeSeconds)
			}
			fmt.Fprintf(t, "\t%d\t%s\t%s\t%s\t\t\t%d\t\n", k.Rank, k.State, step, age, k.PID)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, r := range s.Roles {
		fmt.Fprintf(w, "%s is watched by %s\n", r.Name, r.Watched)
	}
	for _, o := range j.Obligations {
		fmt.Fprintf(w, "still to be cleaned up: %s\n", o)
	}
	return nil
}
