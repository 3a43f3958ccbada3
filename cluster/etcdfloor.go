package cluster

import (
	"fmt"
	"strings"

	"github.com/belayops/belay/internal/kubeversion"
)

// EtcdFloor is the least version that every etcd member must run before the first member moves to a minor.
type EtcdFloor struct {
	// To is etcd's next minor, as 3.7.
	To kubeversion.Minor
	// Least is the documented floor; Better a version from which more is repaired ("" zero when there is none).
	Least, Better kubeversion.V
	// Why says what happens below the floor, Source where the rule stands.
	Why, Source string
}

var etcdFloors = []EtcdFloor{
	{
		To: kubeversion.Minor{Major: 3, Minor: 6}, Least: kubeversion.V{Major: 3, Minor: 5, Patch: 26}, Better: kubeversion.V{Major: 3, Minor: 5, Patch: 32},
		Why:    "older 3.5 members lost membership writes, so that removed members come back and promoted ones are learners again",
		Source: "https://etcd.io/docs/v3.6/upgrades/upgrade_3_6/ (etcd-io/etcd#19557, #20793, #20967)",
	},
	{
		To: kubeversion.Minor{Major: 3, Minor: 7}, Least: kubeversion.V{Major: 3, Minor: 6, Patch: 11},
		Why:    "older 3.6 members may not be compatible with a rolling upgrade",
		Source: "https://etcd.io/docs/v3.7/upgrades/upgrade_3_7/",
	},
}

// EtcdFloorFor gives the floor of a target minor of etcd; ok is false when none is documented.
func EtcdFloorFor(to kubeversion.Minor) (f EtcdFloor, ok bool) {
	for _, f := range etcdFloors {
		if f.To == to {
			return f, true
		}
	}
	return EtcdFloor{}, false
}

// EtcdFloorProblem is a member that stands in the way of etcd's next minor.
type EtcdFloorProblem struct {
	Member  EtcdMember
	Message string
	// Unknown says that the member's version is not known; Advice that it is above the
	// floor and below the version that the floor's Better names.
	Unknown, Advice bool
}

// CheckEtcdFloor says which members do not allow a move to an etcd version: those below the documented
// floor, those more than one minor behind (etcd moves one minor at a time), and those of unknown version.
// Members that run the target's minor already are past the question.
func CheckEtcdFloor(members []EtcdMember, to kubeversion.V) []EtcdFloorProblem {
	var out []EtcdFloorProblem
	floor, documented := EtcdFloorFor(to.MinorVersion())
	for _, m := range members {
		name := memberName(m)
		if m.Version.IsZero() {
			out = append(out, EtcdFloorProblem{Member: m, Unknown: true, Message: fmt.Sprintf("the version of etcd member %s is not known", name)})
			continue
		}
		behind, ok := to.MinorVersion().Sub(m.Version.MinorVersion())
		switch {
		case !ok:
			out = append(out, EtcdFloorProblem{Member: m, Message: fmt.Sprintf("etcd member %s runs %s, of another major version than %s", name, m.Version.Bare(), to.Bare())})
		case behind < 0:
			out = append(out, EtcdFloorProblem{Member: m, Message: fmt.Sprintf("etcd member %s runs %s, which is newer than %s: etcd has no way back but its downgrade procedure", name, m.Version.Bare(), to.Bare())})
		case behind > 1:
			out = append(out, EtcdFloorProblem{Member: m, Message: fmt.Sprintf("etcd member %s runs %s; etcd goes to %s one minor at a time", name, m.Version.Bare(), to.Bare())})
		case behind == 1 && documented && m.Version.Less(floor.Least):
			out = append(out, EtcdFloorProblem{Member: m, Message: fmt.Sprintf("etcd member %s runs %s; etcd %s asks for %s or later first: %s", name, m.Version.Bare(), to.MinorVersion(), floor.Least.Bare(), floor.Why)})
		case behind == 1 && documented && !floor.Better.IsZero() && m.Version.Less(floor.Better):
			out = append(out, EtcdFloorProblem{Member: m, Advice: true, Message: fmt.Sprintf("etcd member %s runs %s; before etcd %s, %s or later is better", name, m.Version.Bare(), to.MinorVersion(), floor.Better.Bare())})
		}
	}
	return out
}

// ImageTag gives the tag of an image reference, "" when it has none. A digest is no tag.
func ImageTag(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.Contains(ref[i:], "/") {
		return ""
	}
	return ref[i+1:]
}

// ImageVersion gives the version that an image's tag names; zero when it names none. The build number
// that etcd's images carry (3.6.8-0) is dropped, as it would read as a pre-release.
func ImageVersion(ref string) kubeversion.V {
	tag := ImageTag(ref)
	// Tags cannot hold a plus; builds write _ or - instead of it.
	tag = strings.ReplaceAll(tag, "_", "+")
	v, err := kubeversion.Parse(tag)
	if err != nil {
		return kubeversion.V{}
	}
	if v.Pre != "" && strings.Trim(v.Pre, "0123456789") == "" {
		v.Pre = ""
	}
	return v
}
