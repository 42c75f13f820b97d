package operate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/metrics"
)

// topAddresses limits the addresses shown: clients may have any number.
const topAddresses = 8

// payers returns the identities by name, and then the addresses over or near a quota.
func (r *Report) payers() []access.Usage {
	all := r.Identities.Usage()
	var list []access.Usage
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return append(list, r.Addresses.Top(topAddresses)...)
}

// clients returns the payers as operators see them.
func (r *Report) clients() []admin.Client {
	out := []admin.Client{}
	for _, u := range r.payers() {
		c := admin.Client{Name: u.Payer, Requests: u.Requests, Bytes: u.Bytes, Quotas: []admin.Quota{}}
		for k := range access.Quota(access.Quotas) {
			if u.Limits.Of[k] == 0 && u.Has[k] == 0 && u.Refused[k] == 0 {
				continue
			}
			q := admin.Quota{Quota: k.String(), Limit: u.Limits.Of[k], Used: u.Has[k], Refused: u.Refused[k]}
			if u.Refused[k] > 0 {
				q.Since = max(u.Since[k].Seconds(), 0.001)
			}
			c.Quotas = append(c.Quotas, q)
		}
		out = append(out, c)
	}
	return out
}

// overQuota says which payers were refused lately. Every model shows it, since such requests reach
// no model.
func (r *Report) overQuota() (out []string) {
	for _, u := range r.payers() {
		for k := range access.Quota(access.Quotas) {
			if u.Lately(k) && u.Limits.Of[k] > 0 {
				out = append(out, fmt.Sprintf("%s is over its quota, %s = %s (refused so far: %d, the last %v ago), whichever model it uses. Raise the quota, or have the client send less.",
					capitalize(u.Payer), k, k.Show(u.Limits.Of[k]), u.Refused[k], u.Since[k].Round(time.Second)))
			}
		}
	}
	return out
}

func capitalize(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// IdentityGauges returns the figures of identities for the metrics.
func (r *Report) IdentityGauges() []metrics.IdentityGauges {
	var out []metrics.IdentityGauges
	for name, u := range r.Identities.Usage() {
		out = append(out, metrics.IdentityGauges{Identity: name, Requests: uint64(u.Requests), Bytes: uint64(u.Bytes),
			Quotas: quotas(func(k access.Quota) metrics.QuotaGauges {
				return metrics.QuotaGauges{Limit: u.Limits.Of[k], Used: u.Has[k], Refused: u.Refused[k]}
			})})
	}
	return out
}

// AddressGauges returns the figures of all addresses together for the metrics.
func (r *Report) AddressGauges() []metrics.QuotaGauges {
	refused := r.Addresses.Refused()
	return quotas(func(k access.Quota) metrics.QuotaGauges { return metrics.QuotaGauges{Refused: refused[k]} })
}

func quotas(of func(access.Quota) metrics.QuotaGauges) []metrics.QuotaGauges {
	out := make([]metrics.QuotaGauges, access.Quotas)
	for k := range access.Quota(access.Quotas) {
		out[k] = of(k)
		out[k].Name = k.String()
	}
	return out
}
