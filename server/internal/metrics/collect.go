package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shivad/shivad/scheduler"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("shivad_"+name, help, labels, nil)
}

// ofModel is desc for what each version of a model has.
func ofModel(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"model", "version"}, more...)...)
}

// ofStage is desc for what each stage of a pipeline has.
func ofStage(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"pipeline", "stage"}, more...)...)
}

var (
	answeredDesc = desc("door_requests_total",
		"Requests answered, of all models that there are and were, by how they ended.", "door", "outcome")
	requestsDesc   = ofModel("requests_total", "Requests answered, by how they ended.", "door", "outcome")
	durationDesc   = ofModel("request_duration_seconds", "Time from a request's last byte to its answer.", "door")
	inFlightDesc   = desc("requests_in_flight", "Requests in flight.", "door")
	queueWaitDesc  = ofModel("queue_wait_seconds", "Time a request waited for its batch.")
	framesDesc     = ofModel("frames_total", "Frames of streams answered, with outputs or an error.")
	reorderedDesc  = ofModel("frames_reordered_total", "Frames of streams whose number was not above that of the frame before.")
	ageDesc        = ofModel("frame_age_seconds", "Age of frames of streams when they were answered with outputs.")
	streamsDesc    = ofModel("streams", "Streams with a frame in the last minute.")
	queueRowsDesc  = ofModel("queue_rows", "Rows waiting for a batch.")
	queueBytesDesc = ofModel("queue_bytes", "Bytes of the rows waiting for a batch.")
	batchRowsDesc  = ofModel("batch_rows", "Rows per batch.")
	executionDesc  = ofModel("batch_execution_seconds", "Time from sending a batch to its answer.")
	predictedDesc  = ofModel("batch_predicted_seconds", "Predicted time of a batch: an upper quantile for its size.")
	failuresDesc   = ofModel("batch_failures_total", "Batches that a container failed, or had not answered when it was lost.")
	surprisesDesc  = ofModel("batch_surprises_total", "Batches that took longer than predicted.")
	closedByDesc   = ofModel("batches_total", "Batches, by why they were closed.", "reason")
	dropsDesc      = ofModel("drops_total", "Requests without a result, by the scheduler's reason.", "reason")
	inTimeDesc     = ofModel("in_time_total", "Requests with a result, other than a default, within the SLO.")
	judgedDesc     = ofModel("judged_total", "Requests that were in time or late: all but those that their client withdrew or got wrong.")
	unheardDesc    = ofModel("missing_voices_total", "Answers of applications in which the answer of this model is missing; for an application, those in which the answer of any of its models is missing.")
	wastedDesc     = ofModel("wasted_rows_total", "Rows computed after their request had been answered.")
	cacheDesc      = ofModel("cache_requests_total", "Requests for a model with a prediction cache, by what it did.", "result")
	cacheGoneDesc  = ofModel("cache_removals_total", "Answers that left the cache, by reason.", "reason")
	notKeptDesc    = ofModel("cache_not_kept_total", "Answers that were too large to cache, or that there was no payload memory for.")
	cacheSizeDesc  = ofModel("cache_entries", "Cached answers.")
	cacheBytesDesc = ofModel("cache_bytes", "Memory of the cached answers, with their bookkeeping.")
	replicasDesc   = ofModel("replicas", "Live replicas.")
	failingDesc    = ofModel("failing_replicas", "Live replicas that fail on every batch.")
	waitsDesc      = ofModel("batch_waits_total", "Waits of idle replicas for clients that ask again on each answer.", "result")
	waitedRowsDesc = ofModel("batch_waited_rows_total", "Rows that came during these waits.")
	neededDesc     = ofModel("replicas_needed", "Replicas that would hold the deadlines of what arrives, by the measured profile.")
	loadDesc       = ofModel("replicas_load", "Replicas needed, without rounding, to be summed over servers that share containers.")
	workedDesc     = ofModel("replica_batches_total", "Batches that a live replica has answered.", "replica")
	workedTimeDesc = ofModel("replica_execution_seconds_total",
		"Time that a live replica took for the batches that it has answered.", "replica")
	workedBadDesc = ofModel("replica_failures_total",
		"Batches that a live replica has failed, or not answered in time.", "replica")
	oldRowDesc   = ofModel("oldest_row_seconds", "Age of the row that waits for longest.")
	oldBatchDesc = ofModel("oldest_batch_seconds", "Time since the oldest batch that is not answered was sent.")

	stageRowsDesc     = ofStage("stage_rows_total", "Rows of a stage of a pipeline, by how they ended.", "outcome")
	stageLeftOutDesc  = ofStage("stage_left_out_total", "Elements that became no rows of a stage, since its keep left them out.")
	stageNotBegunDesc = ofStage("stage_not_begun_total", "Rows of stages that were not begun, as they could not be in time.")
	stageWaitDesc     = ofStage("stage_wait_seconds_total", "Time that requests waited at a stage until their first row was sent to a container.")
	stageDurationDesc = ofStage("stage_duration_seconds", "Time that requests were at a stage, from when its inputs were there to its last row.")

	connectionsDesc = desc("connections", "Open connections of clients.", "door")
	openedDesc      = desc("connections_opened_total", "Connections accepted.", "door")
	closedDesc      = desc("connections_closed_total", "Connections ended, by reason.", "door", "reason")
	receivedDesc    = desc("received_bytes_total", "Bytes from clients.", "door")
	sentDesc        = desc("sent_bytes_total", "Bytes to clients.", "door")

	payloadDesc        = desc("payload_bytes", "Memory for payloads that is in use.")
	payloadLimitDesc   = desc("payload_limit_bytes", "Limit of the memory for payloads in use.")
	regionsDesc        = desc("regions", "Regions of shared memory that clients have registered.")
	regionBytesDesc    = desc("region_bytes", "Bytes of the regions of shared memory that clients have registered.")
	regionsMadeDesc    = desc("region_made_bytes", "Bytes of the payload budget that outputs have taken in files of clients which had no memory there.")
	regionRefusalsDesc = desc("region_refusals_total", "Registrations of regions of shared memory that were refused.",
		"reason")
	unfinishedDesc = desc("unfinished_bytes", "Of the memory for payloads in use, the part of messages that are still arriving.")
	strangersDesc  = desc("stranger_bytes", "Of the memory of messages that are still arriving, the part of clients that have not shown who they are.")
	endedDesc      = desc("unfinished_ended_total",
		"Messages that were refused or ended for want of memory while they were arriving, by reason.", "reason")
	refusalsDesc      = desc("payload_refusals_total", "Times that memory for a payload was refused.")
	restartsDesc      = desc("process_restarts_total", "Restarts of supervised processes.", "container")
	payloadIdleDesc   = desc("payload_idle_bytes", "Free memory for payloads that the process has not returned to the system.")
	arenaDesc         = desc("arena_bytes", "Memory for payloads that is shared with containers on this machine, in use and free.")
	readableDesc      = desc("container_readable_bytes", "Inputs in shared memory that containers may be reading.")
	arenaUsedDesc     = desc("arena_used_bytes", "Of the memory that is shared with containers, what is in use.")
	replacedDesc      = desc("arena_replaced_bytes", "Of the memory that is shared with containers, segments that were replaced, until requests and containers let go of them.")
	outputsDesc       = desc("container_output_bytes", "Shared memory that containers write outputs to, whole until their sessions end.")
	unpackedDesc      = desc("unpacked_bytes", "Of the memory for payloads in use, the part of compressed requests that unpack to far more than their size.")
	unpackLimitDesc   = desc("unpacked_limit_bytes", "Limit of the memory for compressed requests that unpack to far more than their size.")
	newestBytesDesc   = desc("newest_bytes", "Memory of the newest answers of streams, with their bookkeeping.")
	newestLimitDesc   = desc("newest_limit_bytes", "Limit of the memory of the newest answers of streams.")
	newestStreamsDesc = desc("newest_streams", "Streams that the server keeps the newest answer of.")
	newestWaitingDesc = desc("newest_waiting", "Questions that wait for the newest answer of a stream.")
	newestAnswersDesc = desc("newest_questions_total",
		"Questions for the newest answer of a stream, by what they got: answer, error.", "result")
	newestEvictedDesc = desc("newest_evicted_total", "Streams that were forgotten because the newest answers took more than their limit.")
	modelFilesDesc    = desc("model_files", "Models whose files the server reads.")
	faultyFilesDesc   = desc("model_files_faulty", "Of the models whose files the server reads, those that are not served as their files are; status says why.")
	fileChangesDesc   = desc("model_file_changes_total",
		"Changes of model files: taken, kept (the old one serves, since the new one cannot), retired.", "result")
	sessionsDesc  = desc("container_sessions", "Connected containers.")
	stateDesc     = desc("state_up", "1 if the state store (applications, settings, what policies learn) can be written, 0 if not.")
	feedbackDesc  = desc("feedback_total", "Feedback for an application, by what became of it.", "application", "result")
	usersDesc     = desc("policy_users", "Users for whom an application's policy has learned something.", "application")
	forgottenDesc = desc("policy_users_forgotten_total",
		"Users for whom this server forgot what was learned, as state.users allows no more.", "application")
	identityRequestsDesc = desc("identity_requests_total",
		"Requests of an identity, those that its quotas refused among them.", "identity")
	identityBytesDesc = desc("identity_request_bytes_total",
		"Bytes of the requests of an identity, those that its quotas refused among them.", "identity")
	identityRefusedDesc = desc("identity_refused_total", "What was refused to an identity, by quota.", "identity", "quota")
	identityUsedDesc    = desc("identity_used", "What an identity has of a quota that is no rate.", "identity", "quota")
	identityQuotaDesc   = desc("identity_quota", "The quota of an identity, where it has one.", "identity", "quota")
	addressRefusedDesc  = desc("address_refused_total", "What was refused to addresses, by quota.", "quota")
	spansDesc           = desc("trace_spans_exported_total", "Spans that the collector of traces has taken.")
	spansDroppedDesc    = desc("trace_spans_dropped_total", "Spans that were dropped: the collector of traces did not take them in time, or refused them.")
	logLostDesc         = desc("log_lines_lost_total", "Lines of the log that its reader or its disk did not take.")
	buildDesc           = desc("build_info", "Always 1; the labels say what runs.", "version", "goversion")
)

// Describe sends nothing: the series depend on the models. The client library calls such a
// collector unchecked.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// A collection sends series to Prometheus.
type collection chan<- prometheus.Metric

func (out collection) counter(d *prometheus.Desc, v uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (out collection) gauge(d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Collect sends all series to Prometheus.
func (m *Metrics) Collect(series chan<- prometheus.Metric) {
	out := collection(series)
	m.mu.Lock()
	m.sweepLocked()
	m.mu.Unlock()
	doors := *m.doors.Load()
	for _, d := range doors {
		m.collectDoor(out, d)
	}
	sources := m.sources.Load()
	triton := sources.Triton != nil && sources.Triton()
	for _, model := range *m.models.Load() {
		if used := model.used(); used || model.removedAt.Load() == 0 {
			model.collectRequests(out, doors)
			model.collectStages(out)
			if used {
				model.collectWork(out)
			}
			if triton && model.name != "" {
				model.collectTriton(out)
			}
		}
	}
	m.collectSources(out, sources, triton)
	out.gauge(buildDesc, 1, m.version, goVersion())
}

func (m *Metrics) collectDoor(out collection, d *Door) {
	for o := range outcomes {
		out.counter(answeredDesc, m.answered(d, o), d.name, o.String())
	}
	out.gauge(inFlightDesc, float64(d.InFlight()), d.name)
	out.gauge(connectionsDesc, float64(d.Connections()), d.name)
	out.counter(openedDesc, d.opened.Load(), d.name)
	for why := range closedReasons {
		out.counter(closedDesc, d.closed[why].Load(), d.name, why.String())
	}
	out.counter(receivedDesc, d.received.Load(), d.name)
	out.counter(sentDesc, d.sent.Load(), d.name)
}

const second = 1e9 // in nanoseconds

func (m *Model) collectRequests(out collection, doors []*Door) {
	for _, d := range doors {
		if !m.asked(d.index) { // one series shows that the door exists
			out.counter(requestsDesc, 0, m.name, m.version, d.name, OK.String())
			continue
		}
		at := &m.doors[d.index]
		for o := range outcomes {
			out.counter(requestsDesc, at.requests[o].Load(), m.name, m.version, d.name, o.String())
		}
		out <- at.duration.metric(durationDesc, lowestNanos, second, m.name, m.version, d.name)
	}
}

// collectWork sends what happened to the requests of a model that has had any.
func (m *Model) collectWork(out collection) {
	name, version := m.name, m.version
	for _, o := range scheduler.Outcomes()[1:] { // all but OK
		out.counter(dropsDesc, m.drops[o].Load(), name, version, o.String())
	}
	if name != "" {
		ended := m.ended()
		out.counter(inTimeDesc, m.totals.inTime.Load(), name, version)
		out.counter(judgedDesc, ended.Judged(), name, version)
	}
	if n := m.unheard.Load(); n > 0 {
		out.counter(unheardDesc, n, name, version)
	}
	if m.hasFeedback() {
		for f := range feedbacks {
			out.counter(feedbackDesc, m.feedback[f].Load(), name, f.String())
		}
	}
	if m.id == (id{}) {
		return // requests to no model have no queue and no batches
	}
	for _, reason := range scheduler.CloseReasons() {
		out.counter(closedByDesc, m.closed[reason].Load(), name, version, reason.String())
	}
	for _, h := range []struct {
		*histogram
		desc   *prometheus.Desc
		lowest int64
		unit   float64
	}{
		{&m.queueWait, queueWaitDesc, lowestNanos, second},
		{&m.age, ageDesc, lowestNanos, second},
		{&m.batchRows, batchRowsDesc, lowestRows, 1},
		{&m.execution, executionDesc, lowestNanos, second},
		{&m.predicted, predictedDesc, lowestNanos, second},
	} {
		if h.count() > 0 { // 27 series each
			out <- h.metric(h.desc, h.lowest, h.unit, name, version)
		}
	}
	if n := m.frames.Load(); n > 0 {
		out.counter(framesDesc, n, name, version)
		out.counter(reorderedDesc, m.reordered.Load(), name, version)
	}
	out.counter(failuresDesc, m.failures.Load(), name, version)
	out.counter(surprisesDesc, m.surprises.Load(), name, version)
	out.counter(wastedDesc, m.wasted.Load(), name, version)
	if c := &m.cache; c.used.Load() {
		out.counter(cacheDesc, c.Hits.Load(), name, version, "hit")
		out.counter(cacheDesc, c.Misses.Load(), name, version, "miss")
		out.counter(cacheDesc, c.Shared.Load(), name, version, "shared")
		for why := range cacheReasons {
			out.counter(cacheGoneDesc, c.removed[why].Load(), name, version, why.String())
		}
		out.counter(notKeptDesc, c.NotKept.Load(), name, version)
		out.gauge(cacheSizeDesc, float64(c.entries.Load()), name, version)
		out.gauge(cacheBytesDesc, float64(c.bytes.Load()), name, version)
	}
}

// model sends what the scheduler knows about a model.
func (out collection) model(g *scheduler.Stats, name, version string) {
	out.gauge(replicasDesc, float64(g.Live), name, version)
	out.gauge(failingDesc, float64(g.Failing), name, version)
	if g.Waits > 0 {
		out.counter(waitsDesc, g.Waits-g.WaitsInVain, name, version, "paid")
		out.counter(waitsDesc, g.WaitsInVain, name, version, "vain")
		out.counter(waitedRowsDesc, g.WaitedRows, name, version)
	}
	out.gauge(neededDesc, float64(g.Need.Replicas), name, version)
	out.gauge(loadDesc, g.Need.Load, name, version)
	out.gauge(oldRowDesc, g.OldestWait.Seconds(), name, version)
	out.gauge(oldBatchDesc, g.OldestBatch.Seconds(), name, version)
	if g.Streams > 0 {
		out.gauge(streamsDesc, float64(g.Streams), name, version)
	}
	out.gauge(queueRowsDesc, float64(g.QueueRows), name, version)
	out.gauge(queueBytesDesc, float64(g.QueueBytes), name, version)

	// Containers choose their labels, so two may have the same label; two series may not.
	byLabel := make(map[string]scheduler.ReplicaStats, len(g.Replicas))
	for _, r := range g.Replicas {
		label := strings.ToValidUTF8(r.Label, "\uFFFD")
		sum := byLabel[label]
		sum.Batches += r.Batches
		sum.Busy += r.Busy
		sum.Failed += r.Failed
		byLabel[label] = sum
	}
	for label, r := range byLabel {
		out.counter(workedDesc, r.Batches, name, version, label)
		out <- prometheus.MustNewConstMetric(workedTimeDesc, prometheus.CounterValue, r.Busy.Seconds(), name, version,
			label)
		out.counter(workedBadDesc, r.Failed, name, version, label)
	}
}

// collectSources sends the values of other rooms.
func (m *Metrics) collectSources(out collection, s *Sources, triton bool) {
	if s.Models != nil {
		for _, g := range s.Models() {
			if shown := (*m.models.Load())[idOf(g.ID.Name, g.ID.Version)]; shown != nil {
				out.model(&g, shown.name, shown.version)
				if triton {
					out.gauge(tritonPendingDesc, float64(g.Pending), shown.name, shown.version)
				}
			} // otherwise it shares series, and a sum over models would look like one model's value
		}
	}
	if s.Server != nil {
		g := s.Server()
		out.gauge(payloadDesc, float64(g.PayloadBytes))
		out.gauge(payloadLimitDesc, float64(g.PayloadLimit))
		out.gauge(payloadIdleDesc, float64(g.PayloadIdle))
		out.gauge(arenaDesc, float64(g.ArenaBytes))
		out.gauge(arenaUsedDesc, float64(g.ArenaUsed))
		out.gauge(replacedDesc, float64(g.Replaced))
		out.gauge(readableDesc, float64(g.Readable))
		out.gauge(outputsDesc, float64(g.Outputs))
		out.gauge(unpackedDesc, float64(g.Unpacked))
		out.gauge(unpackLimitDesc, float64(g.UnpackLimit))
		out.gauge(unfinishedDesc, float64(g.Unfinished))
		out.gauge(strangersDesc, float64(g.Strangers))
		for reason, n := range g.Ended {
			out.counter(endedDesc, n, reason)
		}
		out.counter(refusalsDesc, g.Refusals)
		out.gauge(regionsDesc, float64(g.Regions))
		out.gauge(regionBytesDesc, float64(g.RegionBytes))
		out.gauge(regionsMadeDesc, float64(g.RegionsMade))
		for reason, n := range g.NoRegions {
			out.counter(regionRefusalsDesc, n, reason)
		}
		out.gauge(newestBytesDesc, float64(g.Newest.Bytes))
		out.gauge(newestLimitDesc, float64(g.Newest.Limit))
		out.gauge(newestStreamsDesc, float64(g.Newest.Streams))
		out.gauge(newestWaitingDesc, float64(g.Newest.Waiting))
		out.counter(newestAnswersDesc, g.Newest.Answered, "answer")
		out.counter(newestAnswersDesc, g.Newest.Failed, "error")
		out.counter(newestEvictedDesc, g.Newest.Evicted)
		out.gauge(modelFilesDesc, float64(g.ModelFiles))
		out.gauge(faultyFilesDesc, float64(g.FaultyFiles))
		for result, n := range g.FileChanges {
			out.counter(fileChangesDesc, n, result)
		}
		out.gauge(sessionsDesc, float64(g.Sessions))
		for name, n := range g.Restarts {
			out.counter(restartsDesc, uint64(n), strings.ToValidUTF8(name, "\uFFFD"))
		}
		up := 0.0
		if g.StateUp {
			up = 1
		}
		out.gauge(stateDesc, up)
	}
	if s.Identities != nil {
		for _, g := range s.Identities() {
			name := strings.ToValidUTF8(g.Identity, "\uFFFD")
			out.counter(identityRequestsDesc, g.Requests, name)
			out.counter(identityBytesDesc, g.Bytes, name)
			for _, q := range g.Quotas {
				if !strings.HasSuffix(q.Name, "_per_second") {
					out.gauge(identityUsedDesc, float64(q.Used), name, q.Name)
				}
				if q.Limit > 0 || q.Refused > 0 {
					out.counter(identityRefusedDesc, q.Refused, name, q.Name)
					out.gauge(identityQuotaDesc, float64(q.Limit), name, q.Name)
				}
			}
		}
	}
	if s.Addresses != nil {
		for _, q := range s.Addresses() {
			if q.Name != "connections" { // connections_closed_total counts these
				out.counter(addressRefusedDesc, q.Refused, q.Name)
			}
		}
	}
	if s.Spans != nil {
		exported, dropped := s.Spans()
		out.counter(spansDesc, exported)
		out.counter(spansDroppedDesc, dropped)
	}
	if s.LogLost != nil {
		out.counter(logLostDesc, s.LogLost())
	}
	if s.Learned != nil {
		for _, g := range s.Learned() {
			out.gauge(usersDesc, float64(g.Users), g.Application)
			out.counter(forgottenDesc, g.Forgotten, g.Application)
		}
	}
}
