package container

import (
	"cmp"
	"fmt"
	"os"
	"strconv"

	"github.com/shivad/shivad/containers/internal/subset"
)

// DefaultSubset is the subset's size where neither Model.Subset nor the environment sets one.
const DefaultSubset = subset.Default

// SubsetEnv names the environment variable with the subset's size of models that do not set Subset.
const SubsetEnv = "SHIVA_SUBSET"

// subsetSize returns the number of servers that the model serves at once.
func (m *Model) subsetSize() (int, error) {
	if m.Subset < 0 {
		return 0, fmt.Errorf("container: model %q: Subset is %d, expected a number of servers from 1", m.Name, m.Subset)
	}
	text := os.Getenv(SubsetEnv)
	if m.Subset > 0 || text == "" {
		return cmp.Or(m.Subset, DefaultSubset), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("container: $%s is %q, expected a number of servers from 1", SubsetEnv, text)
	}
	return n, nil
}
