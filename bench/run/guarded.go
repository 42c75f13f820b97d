package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// configurations are the configuration files of shivads by system. Other systems have none.
var configurations = func() map[string]string {
	all := map[string]string{"hostile": hostileConfig, "guarded": identities(100), "slow": slowConfig, greedy: greedyConfig, readLog: logConfig, stoppedLog: logConfig}
	for _, a := range attacks {
		all[a.name] = attackedConfig
	}
	return all
}()

// identities declares n identities, each with a token and rights by pattern, and gives anonymous
// the rights that the load and its container need. The server looks up both kinds in the same way,
// once for each connection, and checks the right to each model. Each request is charged to two
// payers with all quotas, none of which is reached: the identity, and the address.
func identities(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[identity]]\nname = \"client-%d\"\ntoken_sha256 = \"%x\"\nmay = [\"infer:model-%d-*\", \"feedback\"]\n",
			i, sha256.Sum256(fmt.Append(nil, i)), i)
	}
	const quota = "requests_per_second = 10000000\nbytes_per_second = \"1TiB\"\nrequests_in_flight = 1000000\nbytes_in_flight = \"1TiB\"\nunread_bytes = \"1TiB\"\n"
	b.WriteString("[[identity]]\nname = \"anonymous\"\nmay = [\"infer:small\", \"infer:image\", \"serve:*\"]\n[identity.quota]\nconnections = 1000000\n" + quota)
	b.WriteString("[limits.per_address]\n" + quota + "[server]\nlimit_loopback = true\n")
	return b.String()
}

// configure writes the configuration of a system, if it has one, and returns the arguments for it.
func configure(name, bin string) ([]string, error) {
	text, ok := configurations[name]
	if !ok {
		return nil, nil
	}
	path := filepath.Join(bin, name+".toml")
	return []string{"--config", path}, os.WriteFile(path, []byte(text), 0o600)
}

// guarded measures the cost of identities at the Shiva door: the rate of small requests to a server
// with identities, against a server without them, in turns.
func guarded(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "identities and quotas on / off: rate, " + workloads[deep].name, Bound: ratio.AtLeast, Limit: 0.97}
	all, err := systems(ctx, o, bin, []string{"go", "guarded"}, workloads[deep:deep+1])
	if err != nil {
		return r, err
	}
	for round, with := range all["guarded"][0] {
		r.Rounds = append(r.Rounds, with.rate/all["go"][0][round].rate)
	}
	return r, nil
}
