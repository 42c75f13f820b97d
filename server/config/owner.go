package config

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
)

// AnyOwner, among owners, stands for every user.
const AnyOwner = "*"

// OwnerIDs returns the numbers of SharedMemory.Owners; nil = all users. With an error the list is
// empty: no user.
func (m SharedMemory) OwnerIDs() ([]uint32, error) {
	if len(m.Owners) == 0 {
		return []uint32{uint32(os.Geteuid())}, nil
	}
	if slices.Contains(m.Owners, AnyOwner) {
		return nil, nil
	}
	ids := make([]uint32, len(m.Owners))
	for i, name := range m.Owners {
		id := name
		if u, err := user.Lookup(name); err == nil {
			id = u.Uid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return []uint32{}, fmt.Errorf("%q is not a user of this machine: expected a name, a number, or %q for all",
				name, AnyOwner)
		}
		ids[i] = uint32(n)
	}
	return ids, nil
}
