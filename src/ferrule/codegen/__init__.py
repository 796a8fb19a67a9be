"""From fused blocks to machine code.

`kernel.emit_kernel(block, symbol, machine)` turns the region of a `fusion` op into one LLVM function

    void symbol(ptr pointers, i64 begin, i64 end)

whose `pointers` are the addresses of the block's arguments, then of its results, all dense and row-major (a 0-d value
is a buffer of one element). The function does the iterations [begin, end) of the kernel's grid; disjoint ranges may run
on different threads. The block holds only ops that have an element rule.

Layers, each in a file of its own, arrows pointing down:

    kernel     the schedule: loops over the result's index space, vector lanes, tails, reductions, in-place updates
    emitter    element expressions: what element `index` of a value is, by recursion over the block, memoised
    index      index arithmetic: an index component is a scalar base plus a constant stride per vector lane
    counted    indices that are sums and multiples of iota
    scalar     arithmetic on lanes for each dtype: `Scalars` (add, compare, convert, load, store, …)
    row_loop   reductions along a row, then the row · while_loop   loops that run in a kernel
    short_rows reductions along rows of a few elements, with a row in each lane · row_pieces   its loops
    tiles      what is read across, in squares, and short runs in tiles · interleave   short rows mixed in registers
    moved_rows short rows whose elements only change places
    column_folds  rows of a few columns, which are reduced · row_folds   rows of many, gone over as memory lies
    row_vectors   those of whole vectors, which are combined before rows and lanes change places
    pairs      bf16 that reductions read two at a time · wide_flags   flags that they carry as masks
    abreast    large arrays read at several places at once · fetch_ahead   asked for before they are read
    sorted_places   scatters to places that are said to be sorted · one_side   selections by one flag
    whole_lines  rows that begin anywhere in a line · streams   stores past the cache
    spread     padded arrays, their neighbours spread over every so many lanes
    places     where a scatter writes · tables   scatters of many elements into few, each thread with its own
    step_loop  a loop whose body is small kernels, as one function that calls them
    math       exp, log, tanh, … on lanes: math_f32, math_f64, math_complex, … and libm, the C library lane by lane
    lanes      `Num`: a lane value with Python's operators, which formulas are written in
    llvm       the text writer and the way from text to an object file

On devices (`machine.grouped`) a kernel is a function of its pointers that groups of work-items run, and the schedule is
another; the expressions are the same:

    groups     which schedule a block gets
    items      one work-item per element · teams: several per reduction · rows: reductions along rows, then the rows
    tiles_device   transposes through shared memory · concurrent: scatters whose places may meet
    dialect    how a kind of code spells address spaces, work-item numbers, barriers, the math library
    avx512     the dialect of x86 processors with AVX-512
    avx2       that of those before, with AVX2 and FMA
    spirv      the dialect of OpenCL and Level Zero, and the way to a module (spirv_worker, spirv_labels)

A lane value is what an element expression returns: a `llvm.V` of the dtype's *compute type*, or for complex types a
pair (re, im) of them. Compute types: i1 → i1; integers → iN (2- and 4-bit ones → i8 holding the extended value);
f32/f64 → float/double; all narrower floats → float holding a value that the dtype can represent (each op rounds).
With width W > 1 every lane value is a vector <W x …>. In memory: i1 and sub-byte types take one byte per element.
"""
