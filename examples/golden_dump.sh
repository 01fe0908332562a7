#!/usr/bin/env bash
# A CI job: is a model still the one of its golden dump?
#
#     examples/golden_dump.sh TARGET GOLDEN.npz [OPTION of `gradscope compare` ...] [-- OPTION of `gradscope dump` ...]
#
# Without the golden dump the script makes it: commit it, or keep it as an artifact; that of a port is a capture of
# PyTorch. With it, the script dumps the model again and compares. Exit status: 0 the same within tolerance, 1 different or not finite, 2 nothing could be compared;
# 3 to 5 where a file, the model or the machine failed.
set -euo pipefail

target=${1:?the model, as for gradscope dump}
golden=${2:?the golden dump}
shift 2
compare=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  compare+=("$1")
  shift
done
[ $# -eq 0 ] || shift # the rest is for the dump

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A dump with a finding of --check is shown, and ends the job.
gradscope dump "$target" --output "$folder/new.npz" --quiet --check nonfinite --format markdown "$@" >"$folder/new.md" || {
  status=$?
  cat "$folder/new.md"
  exit "$status"
}

if [ ! -e "$golden" ]; then
  mv "$folder/new.npz" "$golden"
  echo "made $golden; commit it"
  exit 0
fi

gradscope compare "$golden" "$folder/new.npz" --format markdown ${compare[@]+"${compare[@]}"}
