// A caller with the npm package @a2a-js/sdk, used as its documentation says.
//
//     node js_client.mjs <folder with node_modules> <URL of the agent> <JSONRPC or HTTP+JSON> <place>
//
// Prints one JSON array a line, what happened and what was seen, for the test to judge. `place` is
// the folder in which the agent looks for the files that the test makes.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { randomUUID } from 'node:crypto';

const [folder, url, binding, place] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const sdk = (name) => import(pathToFileURL(require.resolve(`@a2a-js/sdk${name}`)).href);
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = await sdk('/client');
const { TaskState, Role } = await sdk('');

const say = (...words) => console.log(JSON.stringify(words));

// The client shows no ids of server-sent events, so they are read beside it.
let lastId;
async function noting(input, init) {
  const response = await fetch(input, init);
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response;
  const decoder = new TextDecoder();
  let rest = '';
  const noted = new TransformStream({
    transform(chunk, controller) {
      const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n');
      rest = lines.pop();
      for (const line of lines) if (line.startsWith('id:')) lastId = line.slice(3).trim();
      controller.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(noted), response);
}

const client = await new ClientFactory({
  transports: [
    new JsonRpcTransportFactory({ fetchImpl: noting }),
    new RestTransportFactory({ fetchImpl: noting }),
  ],
  preferredTransports: [binding],
}).createFromUrl(url);

const message = (text, taskId = '') => ({
  tenant: '',
  message: {
    messageId: randomUUID(),
    contextId: '',
    taskId,
    role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: text }, metadata: {}, filename: '', mediaType: '' }],
    metadata: {},
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: {},
});
const stateOf = (task) => TaskState[task.status.state];
const saidBy = (task) => task.status.message?.parts.map((part) => part.content.value).join('');

function show(event) {
  const { $case, value } = event.payload;
  if ($case === 'artifactUpdate') say('chunk', value.artifact.parts[0].content.value);
  else say($case, stateOf(value));
  return value;
}

const card = await client.getAgentCard();
say('card', card.name, client.transport.protocolName, client.protocolVersion);

const done = await client.sendMessage(message('hello'));
say('sent', stateOf(done), saidBy(done));

let writing;
try {
  for await (const event of client.sendMessageStream(message(`write ${place}`))) {
    const value = show(event);
    writing ??= value.id ?? value.taskId;
  }
} catch (error) {
  say('cut', error.constructor.name);
}
const resumed = { serviceParameters: { 'Last-Event-ID': lastId } };
for await (const event of client.resubscribeTask({ tenant: '', id: writing }, resumed)) show(event);
const written = await client.getTask({ tenant: '', id: writing });
say('written', written.artifacts[0].parts.map((part) => part.content.value).join(''));

const asking = await client.sendMessage(message('ask'));
say('asked', stateOf(asking), saidBy(asking));
const answered = await client.sendMessage(message('the red one', asking.id));
say('answered', answered.id === asking.id, stateOf(answered), saidBy(answered));

let waiting;
for await (const event of client.sendMessageStream(message(`wait ${place}/never`))) {
  waiting = event.payload.value.id ?? event.payload.value.taskId;
  break;
}
say('canceled', stateOf(await client.cancelTask({ tenant: '', id: waiting })));

const page = { tenant: '', contextId: '', status: 0, pageToken: '', pageSize: 3 };
const first = await client.listTasks(page);
const second = await client.listTasks({ ...page, pageToken: first.nextPageToken });
const ids = [...first.tasks, ...second.tasks].map((task) => task.id);
say('listed', first.totalSize, [done.id, writing, asking.id, waiting].every((id) => ids.includes(id)));

for (const [name, call] of [
  ['cancel', () => client.cancelTask({ tenant: '', id: done.id })],
  ['get', () => client.getTask({ tenant: '', id: 'no-such-task' })],
]) {
  await call().then(
    () => say('refused', name, 'not at all'),
    (error) => say('refused', name, error.reason, error.message),
  );
}
