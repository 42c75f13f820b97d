#!/usr/bin/env bash
# build.sh builds every fuzz target for OSS-Fuzz, in its builder's image: as $OUT/PACKAGE_TARGET,
# with / in the package as _, its dictionary, and its seeds. TestOSSFuzz of package server compares
# the list with the tree.
#
# The builder ignores the inputs that a target adds with F.Add. So each target first runs for some
# seconds under Go's own engine: the inputs that it collects, and those of testdata/fuzz, are the
# seeds.
set -eu -o pipefail
cd "$SRC/shivad"

# Each line has a package, a target, and a dictionary if its inputs have words.
targets() {
  cat <<'END'
cmd/shivactl FuzzJSONTensor json
cmd/shivactl FuzzReadNPY
containers FuzzHello json
containers FuzzSessionMessages
containers/container FuzzFeedback json
containers/internal/wire FuzzHeaders json
containers/zmtp FuzzHandshake
containers/zmtp FuzzReceive
scheduler/setting FuzzParseBytes
scheduler/setting FuzzParseDuration
server FuzzOperators
server/config FuzzParse toml
server/internal/frigate FuzzMessage json
server/internal/gate FuzzBridge json
server/internal/grpc FuzzMutants
server/internal/grpc FuzzRequest
server/internal/operate FuzzParseDocument json
server/internal/rest FuzzBody
server/internal/rest FuzzData json
server/internal/rest FuzzMutants
server/internal/rest FuzzPath
server/internal/tcp FuzzMutants
server/internal/tcp FuzzParseMetadata json
server/picture FuzzRead
server/selection FuzzState json
server/state FuzzDecodeChange json
server/state FuzzDecodeRecord
server/state FuzzDecodeStored
shiva FuzzDecoder json
shiva FuzzParseError json
shiva FuzzParseText json
shiva FuzzResync
shiva/jsonscan FuzzScanner json
shiva/jsonscan FuzzString json
shiva/tensor FuzzBytes
shiva/tensor FuzzSwapCopy
END
}

# The builder overlays files of the standard library, which Go refuses in its module cache; a newer
# Go than the image's is there, so copy it.
if [[ $(go env GOROOT) == $(go env GOMODCACHE)* ]]; then
  cp -r "$(go env GOROOT)" "$WORK/goroot"
  chmod -R u+w "$WORK/goroot"
  export GOROOT=$WORK/goroot GOTOOLCHAIN=local PATH=$WORK/goroot/bin:$PATH
fi

module=$(go list -m)
[ "$SANITIZER" = coverage ] || CGO_ENABLED=0 FUZZ_CORPUS=$WORK/corpus .ci/fuzz 5s . ./...
targets | while read -r package target dictionary; do
  name=${package//\//_}_$target
  compile_native_go_fuzzer_v2 "$module/$package" "$target" "$name"
  [ -z "$dictionary" ] || cp ".oss-fuzz/$dictionary.dict" "$OUT/$name.dict"
  seeds=$WORK/seeds/$name
  mkdir -p "$seeds"
  for folder in "$package/testdata/fuzz/$target" "$WORK/corpus/$module/$package/$target"; do
    [ ! -d "$folder" ] || cp "$folder"/* "$seeds"
  done
  [ -z "$(ls "$seeds")" ] || addStdLibCorpusToFuzzer -fuzzer_name "$name" -dir "$seeds"
done
