package pipelines

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// serveLookers serves a spotter that hands on the picture in each file, as pixels that carry its
// id, and a cutter that counts the rows whose picture it has got that way.
func (r *rig) serveLookers(got *int) {
	spotter, cutter := fileSpotter, fileCutter
	spotter.rows = func(p *scheduler.Part, row int) ([][]byte, string) {
		if p.Opened != nil && p.Opened.Wanted() > 0 {
			buf, err := r.pool.Get(1 << 10)
			if err != nil {
				panic(err)
			}
			width, _ := fileOf(p, row).Upright()
			buf.Bytes()[0] = byte(width)
			p.Opened.Give(scheduler.Pixels{Data: buf.Bytes(), Buf: buf, Step: 1, Channels: tensor.ChannelsRGB})
		}
		return fileSpotter.rows(p, row)
	}
	cutter.rows = func(p *scheduler.Part, row int) ([][]byte, string) {
		if p.Opened != nil {
			if pixels, given := p.Opened.Pixels(); given {
				if width, _ := fileOf(p, 0).Upright(); pixels.Data[0] != byte(width) || p.OpenedAt != 0 {
					return nil, "it got the pixels of another picture"
				}
				p.Opened.Looked(1)
				*got++
			}
		}
		return fileCutter.rows(p, row)
	}
	r.serve("spotter", spotter, takes(5*time.Millisecond))
	r.serve("cutter", cutter, takes(20*time.Millisecond))
}

// TestPictureHandedOn: what a stage has decoded of a picture reaches the stages after it that are
// about that picture, and only where there are some.
func TestPictureHandedOn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		define func(d *Definition)
		in     tensor.Tensor
		want   int // rows
	}{
		{"a file", nil, fileAsBytes(jpegFile(51)), 3},
		{"several", nil, filesIn(pngFile(41), jpegFile(40), turnedFile(42), jpegFile(43)), 6},
		{"two stages after it", func(d *Definition) {
			again := d.Stages[1]
			again.Name = "again"
			d.Stages = append(d.Stages, again)
			d.Outputs["again"] = "again.y"
		}, fileAsBytes(pngFile(51)), 6},
		{"nobody after it", func(d *Definition) {
			d.Stages, d.Outputs = d.Stages[:1], map[string]string{"y": "spot.boxes"}
		}, fileAsBytes(pngFile(51)), 0},
		{"all at once", func(d *Definition) {
			d.Stages = []admin.Stage{d.Stages[0], d.Stages[0]}
			d.Stages[1].Name = "too"
			d.Outputs = map[string]string{"y": "spot.boxes", "too": "too.boxes"}
		}, fileAsBytes(pngFile(51)), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onRig(t, func(r *rig) {
				got := 0
				r.serveLookers(&got)
				d := photos()
				if tt.define != nil {
					tt.define(&d)
				}
				r.define(d)
				a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{tt.in}})
				if a.Err != nil {
					t.Fatal(a.Err)
				}
				a.Close()
				if got != tt.want {
					t.Errorf("%d rows have got their picture's pixels, expected %d", got, tt.want)
				}
				synctest.Wait()
				if n := r.pool.InUse(); n != 0 {
					t.Errorf("%d bytes are not back after the answer", n)
				}
			})
		})
	}
}

// TestHandedOnToNobody: a request that is given up between the stages leaves nothing behind.
func TestHandedOnToNobody(t *testing.T) {
	for at := range 28 {
		onRig(t, func(r *rig) {
			got := 0
			r.serveLookers(&got)
			r.define(photos())
			a, err := r.begin(&gate.Request{Model: "p", Inputs: []tensor.Tensor{fileAsBytes(pngFile(51))}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(at) * time.Millisecond)
			r.Cancel(&a.Call)
			<-a.done
			a.Close()
		})
	}
}
