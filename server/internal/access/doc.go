// Package access is who may do what, how much of it, and who did it: authentication and
// authorization, quotas, and the audit trail.
//
//	Identities, Identity   who a client or a container is, and its rights
//	Credentials            what a client has presented: a token, a certificate
//	Account, Limits        what one payer has used, and what it may use
//	Use                    what one request charges to its Payers, until End
//	Claims                 the accounts that a connection counts for, until End
//	Addresses              the accounts of addresses; like those of identities they survive a reload
//	Trail                  the latest actions, done or refused
//
// # Identities
//
// An identity is declared in the configuration, with the hashes of its tokens, patterns of its
// certificates, and its rights. A client or a container that presents a declared token, or a
// verified certificate that matches, is that identity for as long as the token or the pattern is
// declared.
//
// Doors authenticate (Identities.Who) and pass the identity on. Each kind of action is authorized
// in one place, by Identity.May: requests and descriptions of models in gate, loading in predict,
// what operators see and change in operate, and containers that register in operate as well.
//
// A nil *Identity is the embedding program, or any client of a server that declares no identities:
// it may do everything. A refused client gets the identity "nobody", which has no rights, so that
// code that overlooks the error grants nothing.
//
// Tokens are looked up in a map by their SHA-256. The time of a look-up depends not on the token
// but on the hash of the presented text, of which a client can choose only a few bits. A comparison
// in constant time would add nothing, and would be linear in the number of tokens.
//
// A certificate belongs to an identity if its names match patterns of that identity alone. A
// certificate that matches two identities belongs to nobody, and so does one with a name that
// programs could parse differently. Patterns that certainly overlap are a fault of the
// configuration.
//
// Sources: Redis' ACLs (the default user without a password, patterns, SHA-256 of passwords) and
// nats-server's accounts (rights by pattern, reloaded under open connections) and its
// verify_and_map (users by the names in a certificate; a certificate of no user is refused).
//
// # Quotas
//
// A quota limits the rate or the resources in use of one identity or one address, so that no client
// can crowd out the others. A request is admitted or refused as a whole; the refusal is a
// [*QuotaError] that names the quota and, for a rate, when to try again. A request never waits for
// quota, with one exception: unread answers shrink as the client reads its own connection, so
// gate.Outbox waits for those.
//
// A rate is a token bucket that a request may overdraw: it is admitted while the bucket is not
// empty, and then pays in full. A bucket that had to cover the whole request would refuse a request
// larger than the bucket forever. For the same reason a payer with nothing in flight may have one
// request, and one answer, of any size.
//
// Counting takes no lock and allocates nothing. The amount in flight is the difference of two
// counters that only grow, begun and ended, which also serve as totals for metrics.
//
// Sources: GCRA (ATM Forum TM 4.0, as in Envoy's and redis-cell's limits) for the buckets, and
// nats-server's accounts, whose limits follow a reload under open connections.
//
// # Audit
//
// The trail records who changed what: actions of operators, clients and containers on any door, and
// actions that were refused for lack of a right. Inference, feedback and reads change nothing and
// are not recorded. Each entry is also a line of the log, which is the permanent record. The Trail
// holds the last thousand for the admin API; of these at most a tenth are refusals of one identity,
// and a tenth those of all who have none.
//
// Concurrency: everything is safe for any goroutine, except that Credentials and a Use belong to
// one goroutine at a time.
package access
