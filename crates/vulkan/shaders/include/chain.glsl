// Kernels of a single row that overlap: compiled with CHAINED, a kernel waits by itself for the one before it, so that no
// barrier has to stand between them. Its workgroups start as soon as units have room for them, and what does not depend on the
// kernels before (weights, norms, keys and values) is under way while those still compute.
//
// A *stage* is a dispatch, or several that do not depend on one another. `left` counts for each stage the workgroups that have
// still to leave it, and those of the next stage wait until none has. The counts are written at the beginning of every play. A
// stage waits for the one before only, which has waited for those before it.
//
// What stages hand on is declared HANDED_ON: it is written to memory that all units see and read from there, not from a unit's
// own cache. A workgroup's writes are released with its count, and acquired with it.
//
// Workgroups of a dispatch start when all those of earlier dispatches have started, so that none that waits takes the place of
// one that it waits for. Vulkan does not promise that, so every wait has a limit; a workgroup that reaches it says so, the
// others stop waiting, too, and the host plays the step again with barriers.
//
// The file that includes this through common.glsl defines CHAIN_BINDING, the first of two bindings of set 1, and has CHAIN_LINK
// among its push constants.
#ifdef CHAINED
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model

#define HANDED_ON devicecoherent
// The stage that is waited for, counted through the play. Behind all other push constants.
#define CHAIN_LINK layout(offset = 124) uint chain_link;

layout(set = 1, binding = CHAIN_BINDING, std430) buffer Chain {
    // Whether a workgroup ever gave up: then nobody waits.
    uint gave_up;
    // How often a workgroup asks, at most.
    uint most_asked;
    uint reserved[6];
    // [stage][8]: counts lie in sectors of their own.
    uint left[];
};
// The same for the host: not 0 once a workgroup has given up.
layout(set = 1, binding = CHAIN_BINDING + 1, std430) buffer ChainNotice { uint chain_notice; };

// Orders what the invocations of a workgroup read and write in buffers, too.
void workgroup_barrier() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
}

// Waits for the stage before. All invocations of a workgroup take part; the first asks.
void await_link(uint link) {
    if (gl_LocalInvocationIndex == 0) {
        uint asked = 0;
        [[dont_unroll]] while (atomicLoad(left[8 * link], gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire) != 0) {
            asked++;
            if (asked >= most_asked) {
                atomicStore(gave_up, 1u, gl_ScopeDevice, 0, 0);
                atomicStore(chain_notice, 1u, gl_ScopeDevice, 0, 0);
                break;
            }
            if (asked % 256 == 0 && atomicLoad(gave_up, gl_ScopeDevice, 0, 0) != 0) {
                break;
            }
        }
    }
    workgroup_barrier();
}

// Leaves the stage. All invocations of a workgroup take part, once.
void leave_link(uint link) {
    workgroup_barrier();
    if (gl_LocalInvocationIndex == 0) {
        atomicAdd(left[8 * (link + 1)], 0xffffffffu, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
    }
}
#else
#define HANDED_ON
#define CHAIN_LINK
#endif
