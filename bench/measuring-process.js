/**
 * A process that measures one subject in one scenario, as often as it is told to. V8 settles for a whole process how code
 * is compiled, and where what it makes is kept, by what it saw there: no subject is to pay for what another one did.
 */
import { scenarios } from './scenarios/index.js';

const { title, name, url } = JSON.parse(process.argv[2]);
const { measure } = scenarios.find((scenario) => scenario.title === title);
process.on('message', async (seconds) => process.send(await measure(url, name, seconds)));
process.send('ready');
