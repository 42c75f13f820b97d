// Package metrics counts what the server does, and shows it to Prometheus.
//
// [New] gives one [Metrics], which is a registry with the collectors of the Go runtime and of
// the process in it. Rooms take what they count with while they are set up: a [Door] per way
// in, a [Model] per model version. What they hold are plain atomic words: counting looks up
// nothing and allocates nothing, and everything Prometheus needs, labels and floats and
// buckets, is made when it asks.
//
// That is why Metrics is one prometheus.Collector of its own instead of a set of
// prometheus.CounterVec: an observation in a histogram of the client library costs 44 ns and in
// ours 13 ns. An event loop counts its requests with a [Tally], in words of its own that it
// adds up once a turn: all that is counted of one request, two observations among it, then
// costs 13 ns instead of 48. `go test -bench . ./server/metrics` measures it.
//
// Names and labels (all names begin with shivad_; the version of a model is a label of its own):
//
//	door_requests_total           {door, outcome}            of all models that there are and
//	                                                         were: it never falls
//	requests_total                {model, version, door, outcome}
//	request_duration_seconds      {model, version, door}     histogram: taken in to answer given,
//	                                                         whatever the outcome
//	requests_in_flight            {door}
//	queue_wait_seconds            {model, version}           histogram: taken in to batch closed
//	frames_total                  {model, version}           of streams, answered with outputs or
//	                                                         an error; those that a newer one
//	                                                         superseded are in drops_total too
//	frames_reordered_total        {model, version}           whose number was not above that of
//	                                                         the one before
//	frame_age_seconds             {model, version}           histogram: of frames of streams, when
//	                                                         they were answered with outputs:
//	                                                         since captured_at, else since they
//	                                                         arrived
//	streams                       {model, version}           with a frame in the last minute
//	queue_rows, queue_bytes       {model, version}
//	batch_rows                    {model, version}           histogram
//	batches_total                 {model, version, reason}   why a batch was closed
//	batch_execution_seconds       {model, version}           histogram: sent to answered
//	batch_failures_total          {model, version}
//	batch_predicted_seconds       {model, version}           histogram: what they were planned
//	                                                         with, to compare
//	batch_surprises_total         {model, version}           slower than predicted; the prediction
//	                                                         is a high quantile
//	wasted_rows_total             {model, version}           computed after their request had been
//	                                                         answered
//	drops_total                   {model, version, reason}   requests without a result, in the
//	                                                         scheduler's words
//	in_time_total                 {model, version}           with a result, defaults apart, within
//	                                                         the SLO: the share of it in
//	                                                         requests_total
//	missing_voices_total          {model, version}           answers of applications that lack the
//	                                                         model's part; of an application: any
//	                                                         model's
//	replicas                      {model, version}           live ones
//	failing_replicas              {model, version}           of them, those failing on every batch
//	replicas_needed               {model, version}           how many would hold the deadlines of
//	                                                         what arrives: ⌈(rows per second + rows
//	                                                         that wait ÷ seconds for that) ÷ (0.8 ×
//	                                                         rows per second of a replica)⌉; 0:
//	                                                         nothing arrived for a minute
//	replicas_load                 {model, version}           the same without rounding, to be summed
//	                                                         over servers that share containers
//	replica_batches_total         {model, version, replica}  answered; replica is its label, else
//	                                                         its container's address
//	replica_execution_seconds_total  {model, version, replica}  that it took for these: its rate is
//	                                                         how busy the replica is
//	replica_failures_total        {model, version, replica}  batches failed or not answered in time
//	oldest_row_seconds            {model, version}           since the row was asked that waits
//	                                                         for longest
//	oldest_batch_seconds          {model, version}           since the batch was sent that is not
//	                                                         answered for longest
//	cache_requests_total          {model, version, result}   hit, miss, shared (waited for an
//	                                                         equal one); the hit ratio is (hit +
//	                                                         shared) / all
//	cache_removals_total          {model, version, reason}   full (evicted), expired, cleared
//	cache_not_kept_total          {model, version}           answers too large, or no payload
//	                                                         memory for them
//	cache_entries, cache_bytes    {model, version}
//	connections                   {door}
//	connections_opened_total      {door}
//	connections_closed_total      {door, reason}
//	received_bytes_total, sent_bytes_total  {door}
//	payload_bytes, payload_limit_bytes      memory for payloads that is out, and the most there
//	                                        may be
//	payload_refusals_total                  times that such memory was refused
//	regions, region_bytes                   of shared memory, that clients have registered
//	region_refusals_total         {reason}  registrations refused: off, denied, missing (the
//	                                        file), too_large, full, invalid
//	payload_idle_bytes                      free for the next payloads; returned to the
//	                                        system in time
//	arena_bytes                             of both, what is shared with containers here
//	arena_used_bytes                        of it, in use
//	arena_replaced_bytes                    of it, in segments that were replaced, until
//	                                        requests and containers let go of them
//	container_readable_bytes                inputs there that containers may be reading
//	container_output_bytes                  of payload_bytes, segments that containers write,
//	                                        whole until their sessions end
//	unpacked_bytes, unpacked_limit_bytes    of payload_bytes, what compressed requests have that
//	                                        unpack to far more than came
//	container_sessions
//	process_restarts_total        {container}                of supervised processes
//	state_up                                what is managed can be changed: 1, or 0 while Redis is
//	                                        away or the disk full
//	feedback_total                {application, result}      learned, repeated (learned before) or
//	                                                         failed
//	policy_users, policy_users_forgotten_total  {application}
//	identity_requests_total       {identity}                those its quotas refused among them
//	identity_request_bytes_total  {identity}                of these
//	identity_refused_total        {identity, quota}         quota is its key in the file
//	identity_used                 {identity, quota}         in flight, unread, open; no rates
//	identity_quota                {identity, quota}         where it has one
//	address_refused_total         {quota}                   of all addresses together: those that
//	                                                         there are, status shows
//	trace_spans_exported_total, trace_spans_dropped_total  while requests are traced
//	build_info                    {version, goversion}       always 1
//
// Requests that never found a model have model="" and version="". The series of the cache are
// there for models that have, or had, one. A request that waited for an equal one and failed is
// in requests_total only: drops_total is the scheduler's, which has not seen it.
//
// What is read stays bounded, whoever registers what. So many models and applications have
// series of their own ([Sources].MaxModels, admin.metrics_models): 15 at rest, three more for each
// further replica, and some 200 in use: those of a door that was asked, histograms that have
// something. Past the bound they share model="_other", without gauges. What has gone, as
// [Metrics.Keep] is told, keeps its series for five minutes, so that the last of its counts are
// read, or until others need the room. Back again it begins at 0, which rate() takes for a restart:
// rate first, sum then. door_requests_total keeps their counts.
//
// All methods may be called from any goroutine.
package metrics
