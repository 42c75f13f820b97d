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
//
// # Why identities work as they do
//
//   - A door determines the identity of a client, and passes it on (access.Identities.Who). Rights
//     are checked in the one place that all doors share for an action: requests and descriptions in
//     gate, load and unload in predict, containers in operate. The admin door, the only one for
//     operators, checks them by method and path.
//   - An identity has its own routes (gate.View): the table of routes without the models that it
//     may not use. So hidden models are missing in every list, every "nearest name" and every error
//     that lists names, without a check in each. The table is built at an identity's first request
//     after models have changed, and stored with the identity: a request pays two loads, and a
//     route is looked up in one map, as without identities. The alternative, a verdict per route
//     stored with each connection, costs memory on each and must be dropped at every change.
//   - A refusal depends only on the pattern of the right and on the requested name, so
//     PermissionDenied reveals no more than NotFound would, and tells the operator what to grant.
//     TestHiddenNames compares every answer about a hidden model with those about a model that does
//     not exist.
//   - A refused client gets the identity "nobody", which has no rights, and not nil. nil is the
//     program itself, or every client if no identity is declared, and may do everything; with nil
//     for a refused client, a caller that overlooked an error would admit everyone.
//   - The token of a connection is looked up again after a reload (access.Credentials, a hash of
//     the token and the table in which it was found). As long as the table is the same, so is the
//     identity.
//   - Tokens are found by their SHA-256 in a map. The time of a look-up depends on the hash of the
//     token that was sent, which an attacker cannot steer towards another token. Tokens are random,
//     so a slow hash would protect nothing, and would let anyone slow the server down by requests
//     over HTTP.
//   - The identity of a Shiva connection is that of its first message. If each message had a token,
//     it would be parsed for each; if any message could have one, a proxy could mix clients on one
//     connection, whose order, fairness and room for answers are meant for one client.
//   - token in Shiva metadata is reserved for the server even if no identity is declared. Otherwise
//     a server that does not ask for tokens would pass a client's token on to containers.
//   - An unknown token is not anonymous. A revoked client would otherwise go on with fewer rights,
//     and notice late.
//   - A certificate belongs to one identity or to none. If the first pattern won, a table further
//     up could take over another identity's clients; if the longest won, the file would not show
//     plainly which identity a client has. Patterns that certainly overlap, a literal name and a
//     pattern that matches it, are an error at the start; two patterns with wildcards are detected
//     when a certificate matches both.
//   - A certificate that matches nothing is not anonymous once any identity has a pattern, for the
//     same reason as an unknown token. If no identity has a pattern, certificates are for the
//     handshake alone.
//   - If a client shows a token and a certificate, the token decides, as behind a proxy that has
//     its own certificate, unless the certificate belongs to another identity: then one of the two
//     is false, and both are refused.
//   - The identity of a certificate is stored with it, with the table that it is from, so requests
//     pay one more load. The names are read once per connection.
//   - Over HTTP the certificate is ignored for a page of another origin. Only a client that has a
//     token can send it, but a browser shows its user's certificate for every page that asks.
//   - Processes that the server started need no token, and none helps them: the kernel reports
//     which process holds the other end of a container's connection, for every generation of the
//     protocol, and the [[container]] says what it may register (operate.Sessions.allow). That is
//     decided once per connection. A process of this machine that may be one of them and cannot be
//     told needs an identity; otherwise hiding would pay.
//   - Containers are checked again after a reload (containers.Listener.Review), and once more after
//     their registration, which a reload may have overtaken.
//
// # Why quotas work as they do
//
//   - One package counts, the doors tell it when (internal/access). A request has a Use, which
//     begins when the size is known and ends with the request; its door ends it where it releases
//     the request's memory (freeCall, the end of ServeHTTP, request.release and the last part of an
//     answer that grpc-go releases), so no way for a request to end needs code of its own. The
//     invariants build panics when something is given back twice, and every test of package server
//     checks that everything has been given back when its server has stopped.
//   - A request over a quota is refused with the reason. Making it wait instead would punish the
//     other clients of the connection, as behind a proxy, and never tell why. HTTP and gRPC
//     announce identity and size before the body, so a refused request takes no memory; over Shiva
//     the metadata follows the tensors, and a message is charged when it is complete. Until then
//     message_bytes and payload_bytes bound it, like any message.
//   - The connections of a payer whose requests are mostly refused are read at intervals
//     (pace.go): a refusal costs a read, a wake-up and an answer, and a client that
//     ignores refusals could cause any number of them. These connections are read one after the
//     other, as often as the payer's rate admits a request, and each after 250 ms at most, so that
//     ten times a quota wakes a door no more often than the quota does; the requests that have
//     arrived by then are admitted or refused at once. Refusals are counted over all connections of
//     a payer: counted per connection, a client with 64 connections was refused a thousand times
//     before the last of them was read at intervals. A connection of several identities is a
//     proxy's, and is always read. Doors wait before they read, so that a client that sends more
//     than the socket holds is held back. Each segment still wakes Go's poller, so the socket
//     (SO_RCVLOWAT) reports nothing below 16 KiB meanwhile (listen.Conn.Lumps).
//   - Over Shiva bytes that are not admitted are read at the payer's rate
//     (reading.go, tcp/pace.go). The size and the sender of a message are known
//     only when it is complete, and refusing 1 MiB messages of a client that may send 1 MiB/s took
//     326 to 394 MiB/s. A second bucket counts what is read, whatever becomes of it, and gives back
//     what is admitted. So a message that is too large, malformed or a stranger's counts, too.
//     Counting refused bytes against the rate itself would be simpler, but a client that keeps
//     sending would never be admitted again. The message that the rate admits next is read at full
//     speed, or its sender would not get the rate; of several connections one message after the
//     other is: a client gets all of its rate on 8 connections at once, and more than half on 64
//     (TestReadingOverTheRate).
//   - Over gRPC a call is refused at its headers (grpc/early.go) if the one before it was refused
//     and the rate still has nothing left: grpc-go's InTapHandle does so on the goroutine that
//     reads. When handlers refused, their goroutines all started at once, only to receive messages
//     in vain: next to a client at ten times a quota of 200 a second, the p99 of other clients was
//     1.2 times as long. Now it is 1.04 times as long, with two reads in a turn; one and four were
//     worse. Calls that pass count against a rate of requests at once (Account.expect): otherwise
//     all calls of a read would pass when one may. Their share of a rate of bytes is not known yet.
//     grpc-go does not end the contexts of calls that are refused here; callsContext does.
//   - A request waits for room for its answer only if that wait can end (gate.Outbox): as long as
//     answers of the same connection are on their way out, since these make room. Otherwise other
//     connections hold the room, their loops would have to wake this one, and the request is
//     refused.
//   - Requests in flight are those begun less those ended, two counts that only rise. They are also
//     the totals for the metrics, so a request pays four additions, and nothing is counted twice.
//   - A bucket is one number: the time at which everything taken so far is paid for. A request is
//     admitted while that time is less than burst ahead, and then adds its price. So even the
//     largest message passes at the lowest rate, once; a bucket that must hold all of a request
//     would refuse it for ever.
//   - An address is remembered while it has connections, anything in flight, or a debt. A new
//     connection does not clear the debt. At most 65,536 addresses without a connection are
//     remembered.
//   - An address without a quota is not counted, so a server without quotas pays nothing. Requests
//     in flight when a reload adds the first quota are missing from its count.
package access
