package main

import (
	"strings"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestObjectConverter(t *testing.T) {
	old, now := kubeversion.MustParse("1.24.0"), kubeversion.MustParse("1.36.3")
	cron := `{"apiVersion":"batch/v1beta1","kind":"CronJob","metadata":{"name":"nightly","namespace":"shop"},"spec":{"schedule":"@daily"}}`
	c, err := objectConverter(nil)([]byte(cron), old, now)
	must(t, err)
	if !strings.Contains(string(c.Object), `"apiVersion":"batch/v1"`) || !strings.Contains(string(c.Object), "@daily") {
		t.Errorf("%s, %v", c.Object, err)
	}
	budget := `{"apiVersion":"policy/v1beta1","kind":"PodDisruptionBudget","metadata":{"name":"web","namespace":"shop"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"web"}}}}`
	if _, err := objectConverter(nil)([]byte(budget), old, now); err == nil || !strings.Contains(err.Error(), "--accept=convert@PodDisruptionBudget") {
		t.Errorf("a kind whose meaning changes: %v", err)
	}
	if c, err := objectConverter([]string{"other-cluster", "convert@PodDisruptionBudget"})([]byte(budget), old, now); err != nil || !strings.Contains(string(c.Object), "policy/v1\"") {
		t.Errorf("accepted: %s, %v", c.Object, err)
	}
	policy := `{"apiVersion":"policy/v1beta1","kind":"PodSecurityPolicy","metadata":{"name":"x"},"spec":{}}`
	if _, err := objectConverter(nil)([]byte(policy), old, now); err == nil {
		t.Error("what has no successor was converted")
	}
	if _, err := objectConverter(nil)([]byte(cron), now, old); err == nil || !strings.Contains(err.Error(), "older") {
		t.Errorf("into an older cluster: %v", err)
	}
}
