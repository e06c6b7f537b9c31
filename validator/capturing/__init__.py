"""Captures: what a run computed, recorded on the disk, one HDF5 file a rank.

`session.capture` and `session.capture_run` make one, `reader.open_capture` opens one.

A capture is a folder `NAME/` with `rank0.h5`, `rank1.h5`, ... and `manifest.json`, or for a run of one rank
a file `NAME.h5` with the manifest inside. Until it is complete its name is `NAME.partial`. A file is HDF5 in
its earliest version; large values are compressed with bitshuffle and zstd (the hdf5plugin package).

| path in a rank's file | what it is |
|---|---|
| `/` | attributes `format`, `format_version` (1), `rank`, `world_size`, `complete`, `failure` (why not), |
|     | and `capture_id`, which all files of a capture and its manifest share |
| `modules` | row: fqn and class of each module |
| `fired` | row: how often the module of that row was called; there once the capture is complete |
| `calls` | row: module (its row), n, enclosing call or -1, start, inputs (JSON). A call's id is its row |
| `returns` | row: call, end, outputs (JSON). A call without a row here never returned |
| `collectives` | row: id, op, reduce, ranks, call or -1, start, path of its edges, tensors entered and left |
| `operators` | row: call, start, name, path of its edges, arguments, results (JSON); may be missing |
| `parameters` | row: name, kind |
| `layouts` | row: JSON of shape, global_shape, placements and mesh |
| `sources` | row: path and torch dtype of each dataset that holds elements |
| `values/FQN/inputs/PATH` | an edge: what entered the module under that argument name and path |
| `values/FQN/outputs/PATH` | an edge: what left it; a bare tensor has no PATH |
| `values/FQN/collectives/OP.K/entered/I`, `.../left/I` | edges of the K-th collective of its kind in a call |
| `values/FQN/operators/OP.K/I` | an edge: result I of the K-th operator of its name in a call |
| `values/FQN/operators/OP.K/given/ARG` | an edge: a tensor that it was given and that is a constant |
| `noise/FQN/inputs/PATH`, `noise/FQN/outputs/PATH` | edges: noise of the values of that path, see below |
| `parameter_values/NAME` | an edge: the parameter's or buffer's values |
| `manifest.json` | the manifest, where the file is the whole capture |

Ranks on several hosts that share no folder write one each, with the same manifest and their own ranks' files:
copied into one folder, in any order, they are the capture.

An edge is a group, with `dtype`, `shape` and where there are any `global_shape`, `placements` and `mesh` of
its first value as attributes, and with:

| in an edge | what it is |
|---|---|
| `%index` | row: call (or collective, or parameter), source, layout, offset, checksum, statistics |
| `%DTYPE` | elements of its values, end to end |
| `%DTYPE.large` | elements of its values of 64 KiB and more, each from the start of a chunk, compressed |
| `%rows` | BLAKE2b-128 of each row, where values above the size limit were not stored |

A value starts at `offset` of the dataset in row `source` of `sources` and has the shape of row `layout` of
`layouts`. Equal bits are stored once: the index then names the dataset of another edge, and where all values
of an edge are another's its `%DTYPE` is a soft link, for viewers. `source` is -1 where only hashes are kept.
Statistics are over finite elements in float64; `nan` is -1 where there are none.

FQN, PATH and NAME consist of escaped parts (`values.escape_part`); the model itself is `%root`, and
collectives outside of any recorded call are under `%outside`. JSON of inputs and outputs maps paths to plain
values, `{"tensor": true}` for a tensor in the edge of that path, and `{"float": "nan"}` for what JSON lacks.
Of an outermost call they also hold `{"object": class, "number": which, "length": tokens or null}` for other
objects, such as caches: two calls that were handed one object continue one another.

The rows of `operators` are in order; they number the values of their edges. Among the arguments, by the
operator's own names, a tensor is where it comes from: `{"operator": [i, result]}` (the i-th of this call),
`{"input": path}`, `{"child": [call, path]}`, `{"parameter": name}` or `{"constant": edge or null}`; what JSON
lacks is `{"float": "nan"}` or `{"other": text}`. A result is `{"tensor": stored, "shape":..., "dtype":...}`
or `{"plain": value}`; views of what goes in, and what nothing was written to yet, are not stored.

The noise of a value is the standard deviation of a candidate's value around it, element by element: what
rounding carries there from all that was computed before. Its dtype is the one that the candidate has there.
Integers and booleans that no rounded value decides have zeros; there is none for those that one does (the
experts that a router chose), and none where it is not known. The manifest says how it was measured.

dtypes are stored bit for bit (`formats_hdf5`): bfloat16 and float8 as floating types of their width, and
packed codes as bytes; the attribute `dtype` of a dataset names the torch dtype.
"""
