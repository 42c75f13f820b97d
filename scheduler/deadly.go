package scheduler

// A deadly is the model's ceiling for sizes at which containers were lost: a container may not
// answer a batch above some size with an error, but end, killed for the memory that it takes. What
// is known of that outlives the container, and holds for those that replace it.
//
// One death proves nothing: operators kill containers, and so do single requests (see culprit.go).
// A death is attributed to the size if nothing shows otherwise: none of the batch's parts ended a
// container as well when it was tried again. After mostDeaths of these without an answer to a batch
// as large the ceiling falls. It is raised as other ceilings are, with pauses for the time that a
// restart takes.
type deadly struct {
	ceiling
	deaths int // attributed to the size since a batch of size rows or more was answered
	size   int // of the smallest batch of these deaths
}

const (
	mostDeaths = 2
	restart    = int64(10e9) // a guess at how long models take to load
)

// died records that a container ended with a batch. If it was a trial, the trial has ended.
func (d *deadly) died(rows int, now int64) { d.failed(rows, restart, now) }

// blame records that a death was due to the size, as far as is known.
func (d *deadly) blame(rows int, now int64) {
	if rows < 2 || d.rows > 0 && rows > d.rows { // that was a trial
		return
	}
	if d.deaths == 0 || rows < d.size {
		d.size = rows
	}
	if d.proven >= d.size { // that was once
		d.proven = 0
	}
	if d.deaths++; d.deaths >= mostDeaths {
		d.fault(d.size, restart, now)
		d.deaths = 0
	}
}

// passed records an answered batch. Once only a size that ended a container is left to try, there
// is a pause, unlike with ceilings for errors.
func (d *deadly) passed(rows, top int, now int64) {
	if rows >= d.size {
		d.deaths = 0
	}
	before := d.rows
	d.ceiling.passed(rows, top, now)
	if d.rows > before && d.broke == d.rows+1 {
		d.next = now + d.pause(restart)
	}
}
