package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// made is a shape of later versions.
func made() shape {
	return shape{
		layout: []func(*bolt.Tx) error{func(tx *bolt.Tx) error { // plans were called moves
			from := tx.Bucket([]byte("policy"))
			to, err := tx.CreateBucketIfNotExists([]byte("plan"))
			if err != nil {
				return err
			}
			err = from.ForEach(func(k, v []byte) error {
				version, text, err := decode(Policy, k, v)
				return errors.Join(err, to.Put(k, encode(Plan, k, version, text)))
			})
			return errors.Join(err, tx.DeleteBucket([]byte("policy")))
		}},
		records: map[Kind][]func(json.RawMessage) (json.RawMessage, error){
			Ledger: {
				func(old json.RawMessage) (json.RawMessage, error) {
					return json.RawMessage(`{"spent":` + string(old) + `}`), nil
				},
				func(old json.RawMessage) (json.RawMessage, error) {
					if bytes.Contains(old, []byte("null")) {
						return nil, errors.New("nothing is not a number")
					}
					return bytes.Replace(old, []byte("}"), []byte(`,"roles":["actor"]}`), 1), nil
				},
			},
		},
	}
}

func TestAnOlderJournalIsBroughtUpToDate(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	write(t, j, Put(Ledger, "all", 2), Put(Policy, "p", 1), Put(Role, "actor", 7))
	must(t, j.Close())
	later := quick()
	later.shape = made()
	for range 2 { // the second time there is nothing to do
		j = mustOpen(t, path, later, func(o *Options) { o.Version = "9.9" })
		got := content(t, j)
		want := map[string]string{"ledger/all": `{"spent":2,"roles":["actor"]}`, "plan/p": "1", "role/actor": "7"}
		if !maps.Equal(got, want) {
			t.Fatalf("there is %v", got)
		}
		write(t, j, Put(Role, "actor", 7))
		must(t, j.Close())
	}
	_, err := Open(path, Options{Job: "tiny"})
	var n *NewerError
	if !errors.As(err, &n) || n.By != "9.9" || n.Found != "format 2" {
		t.Errorf("the older version gets %v", err)
	}
}

func TestAMigrationThatFailsChangesNothing(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	write(t, j, Put[any](Ledger, "all", nil), Put(Policy, "p", 1))
	must(t, j.Close())
	later := quick()
	later.shape = made()
	if _, err := open(path, Options{Job: "tiny"}, later); err == nil || !strings.Contains(err.Error(), `ledger "all" from schema 2: nothing is not a number`) {
		t.Fatalf("opening gave %v", err)
	}
	j = mustOpen(t, path, quick())
	if got := content(t, j); !maps.Equal(got, map[string]string{"ledger/all": "null", "policy/p": "1"}) {
		t.Errorf("there is %v", got)
	}
}

func TestWhatOnlyANewerVersionKnowsIsRefused(t *testing.T) {
	var n *NewerError
	path := newPath(t)
	later := quick()
	later.shape.records = made().records
	j := mustOpen(t, path, later)
	write(t, j, Put(Ledger, "all", 2))
	must(t, j.Close())
	if _, err := Open(path, Options{Job: "tiny"}); !errors.As(err, &n) || n.Found != "records of kind ledger in schema 3" {
		t.Errorf("a newer schema: %v", err)
	}
	path = newPath(t)
	j = mustOpen(t, path, quick())
	b := newBatch()
	b.add(Entry{kind: "dream", key: "k", json: []byte("1")})
	must(t, j.disk.commit(b))
	must(t, j.Close())
	if _, err := Open(path, Options{Job: "tiny"}); !errors.As(err, &n) || n.Found != `records of kind "dream"` {
		t.Errorf("a newer kind: %v", err)
	}
}

func TestForgetSetsAsideWhatWouldBeRefusedAndNothingElse(t *testing.T) {
	path := newPath(t)
	forget := func(o *Options) { o.Forget = true }
	j := mustOpen(t, path, quick())
	write(t, j, Put(Role, "actor", 1))
	must(t, j.Close())
	j = mustOpen(t, path, quick(), forget)
	if n := len(content(t, j)); n != 1 {
		t.Errorf("a good journal was forgotten: %d records", n)
	}
	must(t, j.Close())

	var other *OtherJobError
	if _, err := Open(path, Options{Job: "large"}); !errors.As(err, &other) || other.Found != "tiny" || !strings.Contains(err.Error(), "--forget-state") {
		t.Errorf("another job gets %v", err)
	}
	large, err := open(path, Options{Job: "large", Forget: true}, quick())
	must(t, err)
	if n := len(content(t, large)); n != 0 {
		t.Errorf("another job finds %d records", n)
	}
	must(t, large.Close())
	must(t, os.WriteFile(path, []byte("torn"), 0o600))
	j = mustOpen(t, path, quick(), forget)
	write(t, j, Put(Role, "actor", 2))
	must(t, j.Close())

	if b, err := os.ReadFile(path + ".set-aside-2"); string(b) != "torn" || err != nil {
		t.Errorf("the second file aside is %q, %v", b, err)
	}
	j = mustOpen(t, path+".set-aside-1", quick())
	if got, _, err := ReadOne[int](j, Role, "actor"); got != 1 || err != nil {
		t.Errorf("the first file aside has %d, %v", got, err)
	}
	names, err := filepath.Glob(path + "*")
	must(t, err)
	if len(names) != 3 {
		t.Errorf("there are %v", names)
	}
}
