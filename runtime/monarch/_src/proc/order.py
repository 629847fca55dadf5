"""What a proc runs until its first answer, and the names in it: see `layout`.

Written by `python -m tests.benchmarks.proc_order --write`. A line of functions begins with their
module.
"""

FUNCTIONS = """\
_weakrefset WeakSet.__iter__ _IterationGuard.__init__ _IterationGuard.__enter__
_weakrefset _IterationGuard.__exit__ WeakSet._commit_removals
abc ABCMeta.__new__ ABCMeta.__subclasscheck__
cloudpickle.cloudpickle _make_skeleton_class _lookup_class_or_track _builtin_type _make_function
cloudpickle.cloudpickle _function_setstate subimport _class_setstate
collections.abc Mapping.__contains__
logging _acquireLock _after_at_fork_child_reinit_locks Handler._at_fork_reinit
monarch._src.actor.accompanying take
monarch._src.actor.arrivals Arrivals.begin Arrivals.came
monarch._src.actor.endpoint actor_class _endpoints_of _yields _is_async
monarch._src.actor.ends Ends.after_drain
monarch._src.actor.in_hand InHand.__init__ InHand.take InHand.finish InHand._answer
monarch._src.actor.keeping Keeper.__init__
monarch._src.actor.living run
monarch._src.actor.local LocalActors.spawn LocalActors._take_early LocalActors._watch
monarch._src.actor.local LocalActors._begin
monarch._src.actor.mailbox Mailbox.__init__ Mailbox.put Mailbox.take
monarch._src.actor.payloads Payloads.begin
monarch._src.actor.proc_main main Program.begin Program.run Program._take_main
monarch._src.actor.refs Known.learn client_ref
monarch._src.actor.remote unship keep_sources ship
monarch._src.actor.routes Routes.begin Routes.reply
monarch._src.actor.runtime Runtime.begin Runtime.proc_ref Runtime.client_ref set_runtime
monarch._src.actor.runtime Runtime._handle Runtime._on_spawn Runtime._on_call
monarch._src.actor.served ServedEndpoints.__init__ ServedEndpoints.take ServedEndpoints._first
monarch._src.actor.served Served.__init__
monarch._src.actor.supervising Supervision.__init__ Supervision.watch_waits
monarch._src.actor.sync_life live _live _run_endpoint
monarch._src.actor.worker Worker.__init__ Worker.post Worker.prepare Worker.construct
monarch._src.actor.worker Worker.set_context Worker.ran
monarch._src.config spin_s
monarch._src.core.ids proc_node UidSource.__init__ parse_proc_node _parsed
monarch._src.core.metrics MetricsTable.counts EndpointCounts.__init__ EndpointCounts.taken
monarch._src.core.metrics EndpointCounts.ended
monarch._src.core.order Incoming.__init__ Incoming.direct
monarch._src.core.telemetry TelemetryTable.clear
monarch._src.core.waiting Waiting.__init__
monarch._src.net.baton Baton.spin Baton.watch Baton.start Baton.wait Baton._lead_until
monarch._src.net.baton Baton.wake_leader Baton._pass_on
monarch._src.net.directory address_of at_site site_and_pipe
monarch._src.net.interrupt _forked keep_handler uninterrupted InterruptGuard.__enter__
monarch._src.net.interrupt InterruptGuard.__exit__ guard_for_this_thread InterruptGuard.let_through
monarch._src.net.interrupt shield_this_thread SignalShield.__init__ _stand_behind is_kept
monarch._src.net.interrupt SignalShield.begin SignalShield.end
monarch._src.net.late_thread LateThread.__init__ LateThread.start
monarch._src.net.node Node.begin Node.start Node.link Node._peer Node.reach Node.wait Node.drain
monarch._src.net.node Node._take Node.send
monarch._src.net.noted NotedSignals.begin
monarch._src.net.pipe new_socket Pipe.__init__ Pipe.known_as Pipe.dial Pipe._write Pipe._watch
monarch._src.net.pipe Pipe.receive Pipe.send
monarch._src.net.polling new_poll
monarch._src.net.router Router.open _path _wake_pipe Router.watch Router.connect Router._pipe
monarch._src.net.router Router.wait Router._serve Router._read Router.take_wake_ups Router.receive
monarch._src.net.router Router.send
monarch._src.net.spinning Spin.wait
monarch._src.net.waitable Waitable.__init__ Waitable.finish
monarch._src.proc.board Slot.__init__ _place Slot.idle Slot._write Slot.begin Slot.end
monarch._src.proc.execute begin _reseed
monarch._src.proc.system die_with_parent may_be_looked_into_by
monarch._src.proc.zygote Zygote._become
monarch._src.shape.extent Extent.__init__ checked_labels Extent.point_of_rank Point.__init__
monarch._src.shape.extent Extent.nelements _checked_size
monarch._src.wire.frames encode decode Payload.drop
monarch._src.wire.pickling loads dumps
monarch._src.wire.stream pack Splitter.__init__ Splitter.feed
os _Environ.__setitem__ _Environ.__getitem__
random Random.seed
socket socket.detach socket.__init__
threading _after_fork RLock _enumerate Thread._reset_internal_locks Event._at_fork_reinit
threading Condition._at_fork_reinit main_thread Thread.ident current_thread
types new_class resolve_bases prepare_class _calculate_meta
typing cast
weakref WeakValueDictionary.setdefault KeyedRef.__new__ KeyedRef.__init__
weakref WeakKeyDictionary.__setitem__
"""

NAMES = """\
ABCMeta AF_INET AF_UNIX AGAIN_S AGENT APART AT_ONCE Actor ActorClass ActorId ActorInstance Answer
Any AnyMessage Arrivals AttributeError BUCKETS BUFFERED BUSY BaseException Baton BlockedLoopError
BlockingIOError Boot BootstrapRun BytesIO CHILD_VARIABLE CLASS CLIENT_MESH CONTENDED_S COST_S
CO_COROUTINE Call CallCancelled ClassType Condition Context EADDRINUSE EARLY_CANCELS EFD_CLOEXEC
EFD_NONBLOCK ELSEWHERE EndpointCounts EndpointMethod Ends Event Exception Extent FrameError
FunctionType GATHERED_LIMIT HANDLING_FAILED HEAD Handler Hello IDLE InHand InSegment Incoming
IndexError InterruptGuard JudgeNow Keeper Key KeyError KeyboardInterrupt KeyedRef Known LOOK_AGAIN_S
LateThread Life LocalActors Lock MAIN_COMES_S MAX_HEAD MONARCH_SPIN MOST_FRAMES Mailbox Mapping
MetricsTable NO_GUARD NO_LIFELINE NO_PAYLOAD Node NotedSignals OK ONE_FRAME OSError O_CLOEXEC O_RDWR
PIECES POKE PROTOCOL Payload Payloads Peer Pipe Placed Point ProcsRef Program Q RAREST READ RLock
Random Reply Router Routes Runtime SCHEME SIGCHLD SIGINT SIGKILL SIG_DFL SLOT SOCK_STREAM SOL_SOCKET
SO_SNDBUF SPIN_S SPLIT_BODY SelectorPoll Served ServedEndpoints Shield SignalShield Slot Spin
Splitter StopActor StopNow StreamError Supervision SystemExit TELEMETRY TICK TelemetryTable Thread
TypeError UNREADABLE UPDATE UidSource UnicodeEncodeError UnpicklingError VERSIONS ValueError WRITE
Waitable Waiting Watch WeakKeyDictionary WeakSet WeakValueDictionary Worker Zygote _ATOMS
_BODY_APART _CRLock _DYNAMIC_CLASS_TRACKER_BY_CLASS _DYNAMIC_CLASS_TRACKER_BY_ID
_DYNAMIC_CLASS_TRACKER_LOCK _DummyThread _Environ _FORMAT _HEAD _IN_SEGMENT _IterationGuard
_MainThread _NONE _NOT_THERE _PLAIN _PR_SET_PDEATHSIG _PR_SET_PTRACER _Pickler _PyRLock _QUIETLY
_SEVERAL _SIGINT _SOURCES _VERSION _WITH_ARRAYS _WORD _YIELDS __builtins__ __cleanup__ __closure__
__code__ __contains__ __dict__ __enter__ __exit__ __firstlineno__ __getitem__ __globals__ __import__
__init__ __iter__ __mro__ __mro_entries__ __name__ __new__ __orig_bases__ __prepare__ __setitem__
__subclasscheck__ __supervise__ __traceback__ _abc_impl _abc_init _abc_subclasscheck _accept
_accepts _acquireLock _active _active_limbo_lock _actors _after_at_fork_child_reinit_locks
_after_fork _again_at _again_s _agent _agent_pid _alive _allocate_lock _answer _aside _ask _asked
_at _at_fork_reinit _at_fork_reinit_lock_weakset _awaited _axes _base _become _before _begin
_beginning _behind _bind _bootstrap _breakpoint _builtin_type _bury _busy _by_fd _by_route
_calculate_meta _called _came _carries_none _casts _checked_size _class _class_setstate _cleaned
_client_ref _clock _closed _cloudpickle_submodules _commit_removals _complain _cond _count _counts
_creator _creators _dangling _data _deadline _decode _decode_differently _deliver _dialing _direct
_directory _drain _dumps _early _encode _end_and_flags _end_from_inside _end_own_meshes _ending
_endpoints_of _enumerate _error _errors _exit _extent _failed _faults _finish_raised _fire _first
_follow _followers _for_main _forget _forked _frame _frames _function_setstate _gathered _gave_up
_give_up _given _gives_up _guarded _hand_on _handle _handle_undeliverable_message _handlers
_has_to_wait _heard _held _held_casts _held_direct _hello _host_is_gone _ident _idle_spin _in_vain
_incoming _initialized _installed _introduced _io _io_refs _io_sleeps _is_async _is_fatal
_is_stopped _items _iterating _judge_while_blocked _keeper _kind _known _labels _lately_s _layers
_lead _lead_until _leader_thread _lend _libc _life _lifeline _lifted _limbo _listener _live _loads
_lock _look_again _looked _lookup_class_or_track _low _main _main_busy _main_thread _make_function
_make_skeleton_class _map _measures _meshes _messages _met _name _nelements _node _nodes _note
_noted _nothing _notices _offer _on_call _on_full _on_handler _on_spawn _outbox _ownership _parsed
_pass_on _pass_on_held _path _patients _payload _payload_beside _payloads _peer _peers
_pending_removals _pipe _pipes _place _places _poll _previous _proc_ref _rank _read _ready _recv_fds
_refs _refuse _refused _region _release _remove _reseed _reserved _reset_internal_locks _rest
_room_on_the_stack _router _run _run_endpoint _run_exitfuncs _running _runtime _runtime_pid _seen
_send _sent _serve _served _sha512 _shields _shutdown_locks _shutdown_locks_lock _sizes _socket
_spans _spec _spin _stand_behind _started _stop _stops _streams _take _take_early _take_main _tell
_tell_owner _teller _that_stays _thread _threads _to_self _to_skip _try_again _tstate_lock _turn
_turns _unheard _unlike _unpause _update _waiters _wake_pipe _wake_r _wake_w _wanted _was_cancelled
_watch _watched _what_came_is_lost _which _whole _without_endpoints _woken _word _work _worker
_workers _write _writes _yield _yields acquire actor actor_class add address address_of affinity
after after_drain after_in_child allocate_lock any append args arrivals as_int ask asked async_life
at_home at_site atexit baton begin begin_output big bind bit_length board board_name body bool
bootstrap bootstrapping breakpointhook buckets buffer_callback buffers by_port by_ring bytearray
bytes bytes_in bytes_out cache call callable calls came cancel cancelled cancelled_early carried
carries_payload cast cause cell_contents chain chdir checked_labels class_name clean_up cleaned
clear client client_number client_ref close closed cls co_flags code command condemn connect
connect_ex construct constructor count counts creator current current_thread cwd cycles daemon data
dead debug decode decodevalue default_int_handler deque describe detach dial dialing dict
die_with_parent digest direct directory discard done drain drop dropped due dump dumps dup2 encode
encode_surrogates encodekey encodevalue end ended endpoint endpoints entry enumerate env environ
epoll errno errors eventfd exc_info excepthook exception execute extend failed failure far fd fds
feed fileno files find_creator finish float flush from_bytes from_iterable fstat function gateway
gateway_pipe gauss_next get get_ident getattr getpid getppid getsignal getvalue give_up gone got
grace_s guard_for_this_thread handle has_said_all hasattr heard heed held hex hold holds host id
ident idle if_absent in_hand inspect instance instance_object instrument int intern interrupt into
io is_async is_fatal is_kept isasyncgenfunction iscoroutinefunction isfunction isgeneratorfunction
isinstance islice issubclass items itertools join judge keep_handler keep_sources keepends keeper
key known known_as labels leader learn leave len let_through life limit_s linecache linger_s link
link_far linux list listen live lives lives_on living loads lock log look look_again_s look_often_s
loose mailbox main main_thread make_interruptible map mark max max_ns maxlen may_be_looked_into_by
may_clean memoryview merged mesh mesh_name meshes messages metaclass method metrics min mmap modify
modules monarch._src.actor monarch._src.net.multicast monotonic monotonic_ns multicast name nbytes
nelements new_class new_poll new_socket node note object on_ask on_bootstrap on_broken on_change
on_failure on_handler on_heard on_put on_spawn open ord origin os outbox outside own owner
owner_address pack pack_into parse_proc_node partial partition path patient pause_soon payloads
pickle pipe place plain_signal platform point_of_rank poll pop popleft port_for post prctl prepare
prepare_class prepared proc_node proc_ref put putenv raise_in ran range rank reach reach_node reason
receive receive_now recv recv_into ref refuse register register_at_fork relayed release remove reply
reply_address reply_to resolve_bases returned reversed root route router routes run runtime seed
select send sendmsg sent serves_at set set_blocking set_context set_runtime set_wakeup_fd setattr
setblocking setdefault setsid setsockopt settings settled shield_this_thread ship signal since_ns
site site_and_pipe site_of sites sizes sleepers slot socket sole sorted source_of spawn spec spin
spin_s splitlines splitter st_size start start_new_thread startswith stderr stdout str strerror
strict struct subimport super supervision surrogateescape sync_life sys take take_along
take_wake_ups taken takers target tasks tell_agent_at tell_owner thread threading ties time timer
to_bytes told_to_stop torch total_ns transmit tuple type types uid uids uninterrupted unknown_actor
unlink unpack_from unpicklable_answer unshield_this_thread unship untimed update urandom values vars
version_info wait wait_for_meshes waited_ns waits wake wake_leader warn_on_full_buffer warning watch
watch_waits watched weakcontainer weakref while_restarting words work_of workers write x zip
"""
