// Package metrics counts what the server does, and shows it to Prometheus.
//
// [New] returns a [Metrics], a registry that also has the collectors of the Go runtime and of the
// process. While rooms are set up they take their counters: a [Door] per way in, a [Model] per
// model version. Counters are plain atomic words: counting looks up nothing and allocates nothing,
// and everything that Prometheus needs, labels and floats and buckets, is made during a scrape.
//
// Therefore Metrics is a prometheus.Collector of its own instead of a set of prometheus.CounterVec:
// an observation in a histogram of the client library costs 44 ns and in ours 13 ns. An event loop
// counts its requests with a [Tally], in words of its own that it adds up once a turn: all counts
// of one request, including two observations, then cost 13 ns instead of 48. `go test -bench .
// ./server/internal/metrics` measures it.
//
// Names and labels (all names begin with shivad_; the version of a model is a label of its own):
//
//	door_requests_total           {door, outcome}            of all models, removed ones included:
//	                                                         it never falls
//	requests_total                {model, version, door, outcome}
//	request_duration_seconds      {model, version, door}     histogram: from arrival to answer,
//	                                                         whatever the outcome
//	requests_in_flight            {door}
//	queue_wait_seconds            {model, version}           histogram: from arrival to batch closed
//	frames_total                  {model, version}           of streams, answered with outputs or
//	                                                         an error; superseded frames are in
//	                                                         drops_total, too
//	frames_reordered_total        {model, version}           frames whose number was not above that
//	                                                         of the frame before
//	frame_age_seconds             {model, version}           histogram: age of frames of streams
//	                                                         answered with outputs, at the answer:
//	                                                         since captured_at, otherwise since
//	                                                         they arrived
//	streams                       {model, version}           with a frame in the last minute
//	queue_rows, queue_bytes       {model, version}
//	batch_rows                    {model, version}           histogram
//	batches_total                 {model, version, reason}   why a batch was closed
//	batch_execution_seconds       {model, version}           histogram: sent to answered
//	batch_failures_total          {model, version}
//	batch_predicted_seconds       {model, version}           histogram: the planned time, to compare
//	                                                         with the execution
//	batch_surprises_total         {model, version}           slower than predicted; the prediction
//	                                                         is a high quantile
//	wasted_rows_total             {model, version}           computed after their request had been
//	                                                         answered
//	drops_total                   {model, version, reason}   requests without a result, by the
//	                                                         scheduler's reason
//	in_time_total                 {model, version}           requests with a result other than a
//	                                                         default, within the SLO: a share of
//	                                                         judged_total
//	judged_total                  {model, version}           requests that were in time or late: all
//	                                                         but those that their client withdrew
//	                                                         (superseded, canceled, undelivered) or
//	                                                         got wrong (protocol, too_large,
//	                                                         invalid_input, not_found,
//	                                                         unauthenticated, permission_denied)
//	missing_voices_total          {model, version}           answers of applications that lack the
//	                                                         model's part; of an application: any
//	                                                         model's
//	stage_rows_total              {pipeline, stage, outcome} rows of a stage, by how they ended
//	stage_left_out_total          {pipeline, stage}          elements that keep left out
//	stage_not_begun_total         {pipeline, stage}          of the rows, those of stages that could
//	                                                         not be in time, and were not begun
//	stage_wait_seconds_total      {pipeline, stage}          time until the first row of a request
//	                                                         was sent to a container
//	stage_duration_seconds        {pipeline, stage}          histogram: from when the inputs of a
//	                                                         stage were there to its last row
//	batch_waits_total             {model, version, result}   waits of idle replicas for clients
//	                                                         that ask again on each answer: paid,
//	                                                         vain (fewer than half of them came)
//	batch_waited_rows_total       {model, version}           rows that came during these waits
//	replicas                      {model, version}           live replicas
//	failing_replicas              {model, version}           live replicas that fail on every batch
//	replicas_needed               {model, version}           how many would meet the deadlines of
//	                                                         what arrives: ⌈(rows per second + rows
//	                                                         that wait ÷ seconds for them) ÷ (0.8 ×
//	                                                         rows per second of a replica)⌉; 0:
//	                                                         nothing arrived for a minute
//	replicas_load                 {model, version}           the same without rounding, to be summed
//	                                                         over servers that share containers
//	replica_batches_total         {model, version, replica}  answered batches; replica is its label,
//	                                                         or its container's address
//	replica_execution_seconds_total  {model, version, replica}  time for these batches: its rate is
//	                                                         how busy the replica is
//	replica_failures_total        {model, version, replica}  batches failed or not answered in time
//	oldest_row_seconds            {model, version}           age of the row that has waited longest
//	oldest_batch_seconds          {model, version}           time since the oldest unanswered batch
//	                                                         was sent
//	cache_requests_total          {model, version, result}   hit, miss, shared (waited for an
//	                                                         equal request); the hit ratio is (hit +
//	                                                         shared) / all
//	cache_removals_total          {model, version, reason}   full (evicted), expired, cleared
//	cache_not_kept_total          {model, version}           answers too large, or no payload
//	                                                         memory for them
//	cache_entries, cache_bytes    {model, version}
//	connections                   {door}
//	connections_opened_total      {door}
//	connections_closed_total      {door, reason}
//	received_bytes_total, sent_bytes_total  {door}
//	payload_bytes, payload_limit_bytes      memory for payloads in use, and its limit
//	unfinished_bytes                        of payload_bytes, messages that are still arriving
//	stranger_bytes                          of these, clients that have not shown who they are
//	unfinished_ended_total        {reason}  messages refused or ended for want of memory while they
//	                                        arrived: most (their payer held most of it), slow,
//	                                        refused
//	payload_refusals_total                  times that such memory was refused
//	regions, region_bytes                   regions of shared memory that clients have registered
//	region_made_bytes                       of the payload budget, taken by outputs in files
//	                                        of clients which had no memory there
//	region_refusals_total         {reason}  registrations refused: off, denied, missing (the
//	                                        file), too_large, full, invalid
//	newest_bytes, newest_limit_bytes        newest answers of streams, and the limit
//	newest_streams                          streams with such an answer
//	newest_waiting                          questions for one that wait
//	newest_questions_total        {result}  questions by what they got: answer, error
//	newest_evicted_total                    streams forgotten because of the limit
//	payload_idle_bytes                      free for the next payloads; returned to the
//	                                        system in time
//	arena_bytes                             payloads, in use and free, in memory shared with
//	                                        containers on this machine
//	arena_used_bytes                        of arena_bytes, in use
//	arena_replaced_bytes                    of arena_bytes, in segments that were replaced, until
//	                                        requests and containers release them
//	container_readable_bytes                inputs there that containers may be reading
//	container_output_bytes                  of payload_bytes, segments that containers write,
//	                                        whole until their sessions end
//	unpacked_bytes, unpacked_limit_bytes    of payload_bytes, the part for compressed requests that
//	                                        unpack to far more than their size
//	container_sessions
//	process_restarts_total        {container}                of supervised processes
//	model_files                             models whose files the server reads
//	model_files_faulty                      of these, not served as their files are
//	model_file_changes_total      {result}  taken, kept (the old one serves), retired
//	state_up                                1 if state can be changed; 0 while Redis is unreachable
//	                                        or the disk is full
//	feedback_total                {application, result}      learned, repeated (learned before) or
//	                                                         failed
//	policy_users, policy_users_forgotten_total  {application}
//	identity_requests_total       {identity}                including those that its quotas refused
//	identity_request_bytes_total  {identity}                bytes of these requests
//	identity_refused_total        {identity, quota}         quota is its key in the file
//	identity_used                 {identity, quota}         in flight, unread, open; no rates
//	identity_quota                {identity, quota}         where the identity has one
//	address_refused_total         {quota}                   of all addresses together; status shows
//	                                                        the current addresses
//	log_lines_lost_total                    the log's reader, or its disk, did not take them
//	trace_spans_exported_total, trace_spans_dropped_total  while requests are traced
//	build_info                    {version, goversion}       always 1
//
// Requests that never found a model have model="" and version="". The series of the cache exist for
// models that have, or had, a cache. A request that waited for an equal one and failed is in
// requests_total only: drops_total is the scheduler's, which never saw that request.
//
// The number of series is bounded, whatever containers register. At most [Sources].MaxModels
// (admin.metrics_models) models and applications have series of their own: 15 at rest, three more
// for each further replica, and some 200 in use, since a door has series once it gets a request,
// and a histogram once it has a value. Models past the bound share model="_other", without gauges.
// A model removed by [Metrics.Keep] keeps its series for five minutes, so that its last counts are
// read, or until another model needs the room. If it returns, it begins at 0, which rate() takes
// for a restart: apply rate first, then sum. door_requests_total keeps the counts of removed
// models.
//
// All methods may be called from any goroutine.
package metrics
