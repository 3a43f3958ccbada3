package testenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
)

// Status says how far the life of a network or machine has come.
type Status string

// The statuses. What is "creating" or "removing" while nobody holds its lock was left by a killed process.
const (
	StatusCreating Status = "creating"
	StatusUp       Status = "up"
	StatusRemoving Status = "removing"
)

const (
	stateSchema = "belay.testenv/v1"
	stateFile   = "network.json"
	// Names of unfinished directories in StateDir begin with this.
	stagingPrefix = ".belay-new-"
	maxStateBytes = 1 << 20
	firstMachine  = 10  // host part of the first machine's address
	lastMachine   = 250 // and of the last one's
	gatewayHost   = 1   // resolver and load balancer
	computerHost  = 254 // this computer's own address in the network
)

// record is the state file of one network: what exists, or may exist, on this computer.
type record struct {
	Schema   string          `json:"schema"`
	Name     string          `json:"name"`
	ID       string          `json:"id"`
	Status   Status          `json:"status"`
	Subnet   netip.Prefix    `json:"subnet"`
	Rootfs   string          `json:"rootfs"`
	Created  time.Time       `json:"created"`
	Machines []machineRecord `json:"machines"`
	LB       *lbRecord       `json:"loadBalancer,omitempty"`
	// Sysctls are settings of this computer, by path below /proc/sys, as they were before the first network.
	Sysctls map[string]string `json:"sysctls,omitempty"`
}

type machineRecord struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	Status  Status     `json:"status"`
	Binds   []Bind     `json:"binds,omitempty"`
}

type lbRecord struct {
	Frontend string   `json:"frontend"`
	Backends []string `json:"backends"`
}

// validName is an RFC 1123 label: it becomes a host name, a directory and a part of identifiers.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func checkName(kind, name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%s name %q: want 1 to 40 lower-case letters, digits and inner hyphens", kind, name)
	}
	return nil
}

// networkID marks everything of a network outside its directory (interface, cgroup). It is
// derived, not stored alone, so that what is left can be removed even when the file is gone.
func networkID(stateDir, name string) string {
	sum := sha256.Sum256([]byte(filepath.Join(stateDir, name)))
	return hex.EncodeToString(sum[:4])
}

// linkName is the network's interface on this computer: 14 characters, below the kernel's 15.
func linkName(id string) string { return "belay-" + id }

func cgroupName(id string) string { return "belay-" + id }

// containerID names a machine to runc. A network name holds no dot, so it is unambiguous.
func containerID(network, machine string) string { return "belay-" + network + "." + machine }

// portName is the switch side of a machine's cable.
func portName(a netip.Addr) string { return fmt.Sprintf("p%d", a.As4()[3]) }

func hostAddr(p netip.Prefix, host byte) netip.Addr {
	b := p.Addr().As4()
	b[3] = host
	return netip.AddrFrom4(b)
}

func decodeRecord(data []byte) (*record, error) {
	if len(data) > maxStateBytes {
		return nil, fmt.Errorf("%d bytes, more than any state file has", len(data))
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	r := &record{}
	if err := dec.Decode(r); err != nil {
		return nil, err
	}
	if r.Schema != stateSchema {
		return nil, fmt.Errorf("schema %q, want %q", r.Schema, stateSchema)
	}
	return r, r.check()
}

func (r *record) check() error {
	if err := checkName("network", r.Name); err != nil {
		return err
	}
	switch r.Status {
	case StatusCreating, StatusUp, StatusRemoving:
	default:
		return fmt.Errorf("status %q is not known", r.Status)
	}
	if !r.Subnet.IsValid() || !r.Subnet.Addr().Is4() || r.Subnet.Bits() != 24 || r.Subnet != r.Subnet.Masked() {
		return fmt.Errorf("subnet %q is not an IPv4 /24", r.Subnet)
	}
	names, addrs := map[string]bool{}, map[netip.Addr]bool{}
	for _, m := range r.Machines {
		if err := checkName("machine", m.Name); err != nil {
			return err
		}
		if !r.Subnet.Contains(m.Address) {
			return fmt.Errorf("machine %s: address %s is outside %s", m.Name, m.Address, r.Subnet)
		}
		if names[m.Name] || addrs[m.Address] {
			return fmt.Errorf("machine %s (%s) is listed twice", m.Name, m.Address)
		}
		names[m.Name], addrs[m.Address] = true, true
	}
	return nil
}

func (r *record) machine(name string) *machineRecord {
	i := slices.IndexFunc(r.Machines, func(m machineRecord) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Machines[i]
}

func (r *record) gateway() netip.Addr  { return hostAddr(r.Subnet, gatewayHost) }
func (r *record) computer() netip.Addr { return hostAddr(r.Subnet, computerHost) }

// addMachine records a new machine with the lowest free address.
func (r *record) addMachine(s MachineSpec) error {
	used := map[netip.Addr]bool{}
	for _, m := range r.Machines {
		used[m.Address] = true
	}
	for h := firstMachine; h <= lastMachine; h++ {
		if a := hostAddr(r.Subnet, byte(h)); !used[a] {
			r.Machines = append(r.Machines, machineRecord{Name: s.Name, Address: a, Status: StatusCreating, Binds: s.Binds})
			return nil
		}
	}
	return fmt.Errorf("network %s: no address left in %s", r.Name, r.Subnet)
}

func (r *record) save(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, stateFile), append(b, '\n'), 0o600)
}

// chooseSubnet gives the first free /24 of a sequence that begins at a place derived from the
// name, so that the same name has the same addresses whenever they are free. Ranges that
// clusters use for pods and Services by default (10.96.0.0/12, 10.244.0.0/16) are not in it.
// A taken network wider than /16, such as a company's 10.0.0.0/8 route, does not count on the
// second round: the /24 is more specific than it.
func chooseSubnet(name string, taken []netip.Prefix) (netip.Prefix, error) {
	const first, count = 200, 40 // 10.200.0.0 to 10.239.255.0
	sum := sha256.Sum256([]byte(name))
	start := (int(sum[0])<<8 | int(sum[1])) % (count * 256)
	for _, narrowest := range []int{1, 16} {
		for i := range count * 256 {
			n := (start + i) % (count * 256)
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(first + n/256), byte(n % 256), 0}), 24)
			if !slices.ContainsFunc(taken, func(t netip.Prefix) bool { return t.Bits() >= narrowest && t.Overlaps(p) }) {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, errors.New("no free /24 between 10.200.0.0 and 10.239.255.0; remove networks you no longer need (belay cluster list)")
}
